import lightning
import torch
from neighbours import Host, held_out, per_example, train

from esper_core.integrations.lightning import Grow


class Net(lightning.LightningModule):
    def __init__(self, host):
        super().__init__()
        self.host = host

    def training_step(self, batch, index):
        return per_example(self.host, batch).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


grow = Grow(lambda net, batch: per_example(net.host, batch), ["host.0"], blueprints=["conv_light"], validation=held_out)
lightning.Trainer(max_epochs=25, callbacks=[grow]).fit(Net(Host()), train)
print(*grow.tended, sep="\n")
