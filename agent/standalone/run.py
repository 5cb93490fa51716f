"""Runs a model on several devices: `python run.py DEVICE` on each of them, then `python run.py --ask INPUT.npz`.

It needs the files beside it, Python 3.9 or newer, onnxruntime and numpy. A message is a line of JSON (request, name, type,
shape, bytes) and an array. All connections of a request stay open until its client has the answer; where one ends
before, the request has failed. Nothing is encrypted, and whoever reaches a device can ask it: use trusted networks.
"""

import argparse
import json
import random
import socket
import sys
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import onnxruntime as ort

HERE = Path(__file__).resolve().parent
PLAN: Any = {}  # What plan.json says.
REQUESTS: Any = {}  # By their numbers, while they go on.
BEGIN, FAULT = "begin", "fault"  # Names of messages; values have the numbers of transfers.
REACH_S = 10  # The most seconds until a device is reached.
SILENT_S = 3600  # Where nothing has come for so long, the other end counts as gone.


class Request:
    """A request, as a device or the client sees it. `mail` has what came: names and arrays."""

    def __init__(self, number: str) -> None:
        self.number, self.mail = number, SimpleQueue[Any]()
        self.links: Any = {}  # By device; that of the client is None's, as in schedules.

    def send(self, to: Any, name: str, array: Any) -> None:
        if to not in self.links:
            host, _, port = PLAN["devices"][to]["address"].rpartition(":")
            try:
                self.links[to] = socket.create_connection((host, int(port)), REACH_S)
            except OSError as error:
                raise ConnectionError(f"{to} cannot be reached at {host}:{port}: {error}") from error
            self.links[to].settimeout(SILENT_S)
        header = json.dumps([self.number, name, array.dtype.str, array.shape, array.nbytes])
        self.links[to].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.links[to].sendall(header.encode() + b"\n" + array.tobytes())

    def follow(self, steps: Any, held: Any, sessions: Any) -> None:
        """Does the steps of a schedule, one after the other. `held` has the values by name."""
        come: Any = {}
        for step in steps:
            if step["do"] == "receive":
                while step["as"] not in come:
                    name, array = self.mail.get()
                    if name == FAULT:
                        raise ConnectionError(array)
                    come[name] = array
                held[step["value"]] = come.pop(step["as"])
            elif step["do"] == "copy":
                whole = held[step["value"]] = np.empty(step["shape"], held[step["parts"][0]["of"]].dtype)
                for part in step["parts"]:
                    source, target = (tuple(slice(*ends) for ends in part[key]) for key in ("from", "to"))
                    whole[target] = held[part["of"]][source]
            elif step["do"] == "run":
                inputs = {port: held[value] for port, value in step["inputs"].items()}
                outputs = sessions[step["model"]].run(list(step["outputs"]), inputs)
                held.update(zip(step["outputs"].values(), outputs))
            else:
                self.send(step["to"], step["as"], held[step["value"]])
            for value in step["drop"]:
                del held[value]


def receive(link: socket.socket, number: str = "", answer: Any = None) -> None:
    """Puts what comes over a connection into the mail of its request, at last that it has ended."""
    fault = "a connection of the request has ended"
    link.settimeout(SILENT_S)
    try:
        for line in (stream := link.makefile("rb")):
            number, name, kind, shape, nbytes = json.loads(line)
            request = REQUESTS.setdefault(number, Request(number))
            request.mail.put((name, np.frombuffer(stream.read(nbytes), kind).reshape(shape)))
            if name == BEGIN:
                request.links[None] = link
                Thread(target=answer, args=(request,), daemon=True).start()
    except Exception as error:
        fault = f"what came cannot be read: {error!r}"
    REQUESTS.pop(number, Request("")).mail.put((FAULT, fault))


def load(path: Path, threads: int) -> Any:
    """A session whose products of 8-bit numbers are the same on every processor, wherever ONNX Runtime can make one."""
    path.stat()  # A file that is not there is an OSError.
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    for exact, without in (("1", []), ("1", ["QDQS8ToU8Transformer"]), ("0", [])):
        options.add_session_config_entry("session.x64quantprecision", exact)
        providers = ["CPUExecutionProvider"]
        try:
            return ort.InferenceSession(str(path), options, providers, disabled_optimizers=without)
        except Exception as error:
            refused = error
    raise refused


def listen(device: str, address: str) -> None:
    """Does the device's part of each request."""
    folder, threads = HERE / PLAN["devices"][device]["folder"], PLAN["devices"][device]["threads"]
    steps = json.loads((folder / "schedule.json").read_text())["steps"]
    sessions = {step["model"]: load(folder / step["model"], threads) for step in steps if "model" in step}

    def answer(request: Request) -> None:
        try:
            request.follow(steps, {}, sessions)
            while request.mail.get()[0] != FAULT:  # Until the client ends its connection.
                pass
        except Exception as error:
            with suppress(OSError):
                request.send(None, FAULT, np.array(f"{device}: {error}"))
        for link in request.links.values():
            link.close()

    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))) as door:
        print(f"{device} listens at {address}", flush=True)
        while True:
            Thread(target=receive, args=(door.accept()[0], "", answer), daemon=True).start()


def ask(given: Any) -> Any:
    """The model's outputs by name. Raises OSError if a device fails, and ValueError for wrong inputs."""
    for info in PLAN["inputs"]:
        array = given.get(info["name"], np.empty(0))
        if [array.dtype, [*array.shape]] != [info["dtype"], info["shape"]]:
            raise ValueError(f"{info['name']!r} has to be {info['dtype']} {info['shape']}")
    request = Request(f"{random.getrandbits(128):x}")
    REQUESTS[request.number] = request
    group = random.choice(PLAN["groups"])  # Each group of devices answers whole requests.
    for device in group["devices"]:
        request.send(device, BEGIN, np.array(0))
        Thread(target=receive, args=(request.links[device], request.number), daemon=True).start()
    held = {**given, **{name: np.load(HERE / file) for name, file in PLAN["constants"].items()}}
    request.follow(group["steps"], held, {})
    return {name: held[value] for name, value in group["outputs"].items()}


def main() -> None:
    PLAN.update(json.loads((HERE / "plan.json").read_text()))
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", choices=sorted(PLAN["devices"]), help="the device that this is")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where the device listens (all interfaces)")
    parser.add_argument("--ask", metavar="INPUT.npz", help="the inputs of a request by name")
    parser.add_argument("--out", default="answer.npz", help="the file for the outputs by name (%(default)s)")
    options = parser.parse_args()
    try:
        if options.device:
            port = PLAN["devices"][options.device]["address"].rpartition(":")[2]
            listen(options.device, options.listen or f"0.0.0.0:{port}")
        elif options.ask:
            np.savez(options.out, **ask(dict(np.load(options.ask))))
        else:
            parser.error("give the name of the device, or --ask INPUT.npz")
    except (OSError, ValueError) as error:
        sys.exit(f"run.py: {error}")


if __name__ == "__main__":
    main()
