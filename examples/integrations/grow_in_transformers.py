from data import Model, held_out, train
from transformers import Trainer, TrainingArguments

from esper_grow.integrations.transformers import Grow

arguments = TrainingArguments("trained", num_train_epochs=25, per_device_train_batch_size=50, learning_rate=0.01)
grow = Grow(["stem"], blueprints=["conv_light"], eval_dataset=held_out.dataset)
Trainer(Model(), arguments, train_dataset=train.dataset, callbacks=[grow]).train()
print(*grow.tended, sep="\n")
