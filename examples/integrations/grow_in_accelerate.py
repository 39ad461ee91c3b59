from accelerate import Accelerator
from neighbours import Host, held_out, per_example, train
from torch.optim import Adam

from esper_core import Gardener

accelerator = Accelerator()
model, optimizer, train = accelerator.prepare(host := Host(), Adam(host.parameters(), lr=0.01), train)
data = {"loss": per_example, "example": next(iter(held_out)), "validation": held_out, "steps": 25}
gardener = Gardener(accelerator.unwrap_model(model), optimizer, slots=["0"], blueprints=["conv_light"], **data)
for _epoch in range(25):
    for batch in train:
        optimizer.zero_grad()
        accelerator.backward(per_example(model, batch).mean())
        optimizer.step()
        gardener.step(batch)
    print(gardener.tend())
