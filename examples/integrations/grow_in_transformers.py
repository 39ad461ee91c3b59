from neighbours import Host, held_out, per_example, train
from transformers import Trainer, TrainingArguments

from esper_core.integrations.transformers import Grow


class Model(Host):
    def forward(self, signals, labels):
        losses = per_example(super().forward, (signals, labels))
        return {"loss": losses.mean(), "losses": losses}


examples = [{"signals": signal, "labels": label} for signal, label in train.dataset]
validation = [{"signals": signals, "labels": labels} for signals, labels in held_out]
grow = Grow(["0"], loss=lambda model, batch: model(**batch)["losses"], blueprints=["conv_light"], validation=validation)
arguments = TrainingArguments("trained", num_train_epochs=25, per_device_train_batch_size=50, learning_rate=0.01)
Trainer(Model(), arguments, train_dataset=examples, callbacks=[grow]).train()
print(*grow.tended, sep="\n")
