"""Runs a model on several devices: `python run.py DEVICE` on each of them, and then `python run.py --ask input.npz`.

It needs the files beside it, Python 3.9 or newer, onnxruntime and numpy. Nothing is encrypted, and whoever reaches a
device's port can ask it: use it in a network that you trust. A message is a line of JSON (the request, the number of the
transfer, the type and the shape of each array) and the bytes of the arrays. All connections of a request stay open until
its client has the answer; where one ends before, the request has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import socket
import sys
import threading
import time
import uuid
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import onnxruntime as ort

HERE = Path(__file__).resolve().parent
PLAN: dict[str, Any] = {}  # What plan.json says.
BEGIN = -1  # In place of a transfer's number: a client begins a request.
REQUESTS: dict[str, SimpleQueue[Any]] = {}  # Of each request, what has come: transfer, arrays, fault.


def connect(device: str) -> socket.socket:
    host, _, port = PLAN["devices"][device]["address"].rpartition(":")
    try:
        link = socket.create_connection((host, int(port)), timeout=10)
    except OSError as error:
        raise ConnectionError(f"{device} cannot be reached at {host}:{port}: {error}") from error
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def send(link: socket.socket, request: str, number: int, arrays: Any = (), fault: str = "") -> None:
    forms = [[array.dtype.str, array.shape] for array in arrays]
    header = json.dumps({"request": request, "transfer": number, "arrays": forms, "fault": fault})
    link.sendall(b"".join([header.encode(), b"\n", *(array.tobytes() for array in arrays)]))


def messages(link: socket.socket) -> Any:
    """The headers and arrays of all messages that come until the connection ends."""
    with link.makefile("rb") as stream:
        while line := stream.readline():
            header, arrays = json.loads(line), []
            for name, shape in header["arrays"]:
                data = stream.read(np.dtype(name).itemsize * math.prod(shape))
                arrays.append(np.frombuffer(data, name).reshape(shape))
            yield header, arrays


def follow(steps: Any, held: dict[str, Any], mail: SimpleQueue[Any], post: Any, sessions: Any) -> None:
    """Does the steps of a schedule, one after the other. `held` has the values by name."""
    come: dict[int, Any] = {}
    for step in steps:
        if step["do"] == "receive":
            while step["transfer"] not in come:
                number, arrays, fault = mail.get()
                if fault:
                    raise ConnectionError(fault)
                come[number] = arrays
            held.update(zip(step["values"], come.pop(step["transfer"])))
        elif step["do"] == "copy":
            whole = np.empty(step["shape"], held[step["parts"][0]["of"]].dtype)
            for part in step["parts"]:
                source, target = (tuple(slice(*ends) for ends in part[key]) for key in ("from", "to"))
                whole[target] = held[part["of"]][source]
            held[step["value"]] = whole
        elif step["do"] == "run":
            inputs = {port: held[value] for port, value in step["inputs"].items()}
            outputs = sessions[step["model"]].run(list(step["outputs"]), inputs)
            held.update(zip(step["outputs"].values(), outputs))
        elif step["do"] == "send":
            post(step["to"], step["transfer"], [held[value] for value in step["values"]])
        for value in step["drop"]:
            del held[value]


def load(path: Path, threads: int) -> Any:
    """A session whose products of 8-bit numbers are the same on every processor, wherever ONNX Runtime can make one."""
    refused: Any = None
    ways: Any = (("1", []), ("1", ["QDQS8ToU8Transformer"]), ("0", []))
    for exact, without in ways:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.x64quantprecision", exact)
        try:
            return ort.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=without
            )
        except Exception as error:
            refused = error
    raise refused


def listen(device: str, address: str) -> None:
    folder = HERE / PLAN["devices"][device]["folder"]
    steps = json.loads((folder / "schedule.json").read_text())["steps"]
    models = sorted({step["model"] for step in steps if step["do"] == "run"})
    sessions = {model: load(folder / model, PLAN["devices"][device]["threads"]) for model in models}

    def answer(request: str, mail: SimpleQueue[Any], client: socket.socket) -> None:
        links = {None: client}  # In schedules, null is the client.

        def post(target: Any, number: int, arrays: Any) -> None:
            if target not in links:
                links[target] = connect(target)
            send(links[target], request, number, arrays)

        try:
            follow(steps, {}, mail, post, sessions)
            while not mail.get()[2]:  # Until the client ends its connection.
                pass
        except Exception as error:
            with contextlib.suppress(OSError):
                send(client, request, BEGIN, fault=f"{device}: {error}")
        for link in links.values():
            link.close()

    def serve(link: socket.socket) -> None:
        request, fault = "", "a connection of the request has ended"
        try:
            for header, arrays in messages(link):
                request = header["request"]
                mail = REQUESTS.setdefault(request, SimpleQueue())
                mail.put((header["transfer"], arrays, ""))
                if header["transfer"] == BEGIN:
                    threading.Thread(target=answer, args=(request, mail, link), daemon=True).start()
        except Exception as error:
            fault = f"what came cannot be read: {error!r}"
        REQUESTS.pop(request, SimpleQueue[Any]()).put((BEGIN, (), fault))

    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))) as door:
        print(f"{device} listens at {address}", flush=True)
        while True:
            threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()


def ask(given: dict[str, Any]) -> dict[str, Any]:
    """The model's outputs by name."""
    group = random.choice(PLAN["groups"])  # Each group of devices answers whole requests.
    request, mail = uuid.uuid4().hex, SimpleQueue[Any]()
    links: dict[str, socket.socket] = {}

    def collect(device: str) -> None:
        for header, arrays in messages(links[device]):
            mail.put((header["transfer"], arrays, header["fault"]))
        mail.put((BEGIN, (), f"{device} has ended the connection"))

    for device in group["devices"]:
        links[device] = connect(device)
        threading.Thread(target=collect, args=(device,), daemon=True).start()
        send(links[device], request, BEGIN)
    held = {**given, **{value: np.load(HERE / file) for value, file in PLAN["constants"].items()}}
    follow(group["steps"], held, mail, lambda to, *message: send(links[to], request, *message), {})
    return {name: held[value] for name, value in group["outputs"].items()}


def main() -> None:
    PLAN.update(json.loads((HERE / "plan.json").read_text()))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", nargs="?", choices=sorted(PLAN["devices"]), help="the device that this is")
    parser.add_argument("--ask", metavar="INPUT.npz", help="the inputs of a request by name")
    parser.add_argument("--out", default="answer.npz", help="the file for the outputs by name (%(default)s)")
    parser.add_argument(
        "--address", action="append", default=[], metavar="DEVICE=HOST:PORT", help="repeatable"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="where to listen (all interfaces)")
    options = parser.parse_args()
    for name, _, address in (text.partition("=") for text in options.address):
        PLAN["devices"][name]["address"] = address
    if options.device:
        port = PLAN["devices"][options.device]["address"].rpartition(":")[2]
        listen(options.device, options.listen or f"0.0.0.0:{port}")
    if not options.ask:
        parser.error("give the name of the device, or --ask INPUT.npz")
    given, began = dict(np.load(options.ask)), time.perf_counter()
    for info in PLAN["inputs"]:
        array = given.get(info["name"], np.empty(0))
        if [array.dtype.name, list(array.shape)] != [info["dtype"], info["shape"]]:
            sys.exit(f"{options.ask}: {info['name']!r} has to be {info['dtype']} {info['shape']}")
    try:
        np.savez(options.out, **ask({info["name"]: given[info["name"]] for info in PLAN["inputs"]}))
    except OSError as error:
        sys.exit(f"no answer: {error}")
    print(f"answered in {time.perf_counter() - began:.3f} s; the outputs are in {options.out}")


if __name__ == "__main__":
    main()
