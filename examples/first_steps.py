"""First steps with edgepart's Python API. Run it cell by cell (editors show `# %%` as cells), or as a program:

    python examples/first_steps.py model.onnx

It needs an agent on this machine (`edgepart init && edgepart agent`), or EDGEPART_AGENT with the URLs of some.
"""

# %% Connect. The client learns who the members are; when the agent that it talks to dies, it goes on with another.
import sys

import numpy as np

import edgepart

client = edgepart.connect()
for member in client.status()["members"]:
    print(member["name"], member["state"], member["http"])

# %% What would a plan for this cluster look like? This needs no deployment: it works with any cluster.json, too.
model = sys.argv[1]
forecast = edgepart.plan(model, client.devices(), search_budget_s=2.0)
print(f"{1e3 * forecast.latency_s:.1f} ms a request; the best single box: {forecast.best_single}")

# %% Deploy it, and see who computes what.
deployed = client.deploy(model, "first-steps", progress=lambda stage, done, total: print(end="."))
print(f"\n{deployed.name} is served by {', '.join(deployed.devices)}")
print(deployed.why)

# %% Infer: numpy arrays in, numpy arrays out. Inputs are given by name.
card = next(card for card in client.models() if card["name"] == deployed.name)
draw = np.random.default_rng(0)
inputs = {value["name"]: draw.standard_normal(value["shape"], np.float32) for value in card["inputs"]}
answer = client.infer(deployed.name, inputs)
for name, array in answer.items():
    print(name, array.dtype, array.shape, array.ravel()[:4])
print(f"{1e3 * answer.seconds:.1f} ms, by {answer.url}; sent again {answer.retries} times")

# %% Where does the time of a request go? https://ui.perfetto.dev draws the file.
with client.trace(deployed.name) as recording:
    for _ in range(5):
        client.infer(deployed.name, inputs)
recording.save("trace.json")
print([f"{1e3 * request.took_s:.1f} ms" for request in recording.trace.requests()])

# %% Clean up. Leaving this out would be fine as well: the deployment stays, and the client ends with the program.
client.undeploy(deployed.name)
client.close()
