import lightning
import torch
from data import Model, held_out, train

from esper_grow.integrations.lightning import Grow


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, index):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


grow = Grow(["model.stem"], blueprints=["conv_light"], validation=held_out)
lightning.Trainer(max_epochs=25, callbacks=[grow]).fit(Net(), train)
print(*grow.tended, sep="\n")
