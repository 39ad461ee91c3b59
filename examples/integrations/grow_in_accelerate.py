from accelerate import Accelerator
from data import Model, held_out, train
from torch.optim import Adam

from esper_grow.integrations.accelerate import grow

accelerator, model = Accelerator(), Model()
model, optimizer, train = accelerator.prepare(model, Adam(model.parameters(), lr=0.01), train)
gardener = grow(accelerator, model, optimizer, ["stem"], blueprints=["conv_light"], validation=held_out, steps=25)
for _epoch in range(25):
    for batch in train:
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        gardener.step(batch)
    print(gardener.tend())
