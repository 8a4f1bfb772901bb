"""Peers that train with the Trainer of transformers: alone, with DeepSpeed, or with zeroshard in DeepSpeed's place.

Trainer owns its loop, so it runs in a thread of its own and waits before each step until the bench asks for one.
"""

import queue
import threading

from .workload import BETAS, EPS, LEARNING_RATE, SHAPES, WEIGHT_DECAY, make_batch

_STEPS = 100_000  # more than any run takes


class _Rows:
    """Rows in the order in which Accelerate deals them out: a batch for each rank, then the next step's."""

    def __init__(self, context, ranks):
        self.context = context
        self.ranks = ranks
        self.shape = SHAPES[context.shape]
        self.last = (None, None)

    def __len__(self):
        return _STEPS * self.context.micro_batch * self.ranks

    def __getitem__(self, index):
        batch, row = divmod(index, self.context.micro_batch)
        if self.last[0] != batch:
            step, rank = divmod(batch, self.ranks)
            self.last = (batch, make_batch(self.shape, self.context.seed, step, rank, self.context.dtype))
        return {name: values[row] for name, values in self.last[1].items()}


def _arguments(context, config, directory):
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=directory,
        deepspeed=config,
        use_cpu=True,
        bf16=context.dtype == "bf16",
        per_device_train_batch_size=context.micro_batch,
        max_steps=_STEPS,
        learning_rate=LEARNING_RATE,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        adam_epsilon=EPS,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=context.clip,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def trainer(stage=None, library=None):
    """`stage` and `library` ("deepspeed", "zeroshard") are None for Trainer in one process."""

    def setup(model, context):
        import tempfile

        import torch
        from transformers import Trainer, TrainerCallback

        asked, reached = queue.Queue(), queue.Queue()

        class Paced(Trainer):
            def _get_train_sampler(self, train_dataset=None):
                return torch.utils.data.SequentialSampler(self.train_dataset)

            def get_decay_parameter_names(self, model):
                return [name for name, _ in model.named_parameters()]

            loss = None

            def training_step(self, *args, **kwargs):
                self.loss = super().training_step(*args, **kwargs)
                return self.loss

        class Pace(TrainerCallback):
            def on_step_begin(self, *args, **kwargs):
                reached.put(paced.loss)
                asked.get()

        config = None
        if library is not None:
            config = {
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto",
                "gradient_clipping": "auto",
                "zero_optimization": {"stage": stage},
                "bf16": {"enabled": "auto"},
                "zero_allow_untested_optimizer": True,
                "steps_per_print": 1_000_000_000,
            }
        rows = _Rows(context, ranks=1 if library is None else context.world)
        arguments = _arguments(context, config, tempfile.mkdtemp(prefix="zeroshard-trainer-"))
        paced = Paced(model=model, args=arguments, train_dataset=rows, callbacks=[Pace()])

        def train():
            try:
                torch.set_num_threads(1)
                paced.train()
                raise RuntimeError("Trainer has ended")
            except BaseException as error:
                reached.put(error)

        def await_next_step():
            loss = reached.get()
            if isinstance(loss, BaseException):
                raise loss
            return loss

        def step(batch):  # which Trainer takes from _Rows itself
            asked.put(None)
            return await_next_step()

        threading.Thread(target=train, daemon=True).start()
        await_next_step()  # collectives of two threads at a time would meet the wrong ones
        return step

    return setup
