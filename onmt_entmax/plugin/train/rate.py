"""OpenNMT-py's ``Optimizer`` with the schedule of the paper, and its whole state in checkpoints."""

from __future__ import annotations

from onmt.utils.logging import logger

from onmt_entmax.plugin.train.options import VALID_LOSS
from onmt_entmax.plugin.train.schedule import ValidLossSchedule

_SCHEDULE, _SCALER = "entmax_schedule", "entmax_scaler"
_FOLLOWED = ("optim", "learning_rate", "learning_rate_decay", "decay_method", "max_grad_norm")


def schedule_of(optimizer) -> ValidLossSchedule | None:
    """The schedule that follows validation loss, or None where another one (or none) was chosen."""
    decay = optimizer._learning_rate_decay_fn
    return decay if isinstance(decay, ValidLossSchedule) else None


def make_learning_rate_decay_fn(stock):
    def make_learning_rate_decay_fn(opt):
        if opt.decay_method == VALID_LOSS:
            return ValidLossSchedule(opt.learning_rate_decay)
        return stock(opt)

    return make_learning_rate_decay_fn


def state_dict(stock):
    def state_dict(self):
        state = stock(self)
        schedule = schedule_of(self)
        if schedule is not None:
            state[_SCHEDULE] = schedule.state_dict()
        if self._scaler is not None:
            state[_SCALER] = self._scaler.state_dict()
        return state

    return state_dict


def load_state_dict(stock):
    def load_state_dict(self, state_dict):
        stock(self, state_dict)
        schedule = schedule_of(self)
        if schedule is not None and _SCHEDULE in state_dict:
            schedule.load_state_dict(state_dict[_SCHEDULE])
        if self._scaler is not None and state_dict.get(_SCALER):
            self._scaler.load_state_dict(state_dict[_SCALER])

    return load_state_dict


def from_opt(stock):
    def from_opt(cls, model, opt, checkpoint=None):
        if opt.train_from and opt.reset_optim == "keep_states" and checkpoint is not None:
            # the options are given anew: the rate starts at the one given
            checkpoint.get("optim", {}).pop(_SCHEDULE, None)
        optimizer = stock.__func__(cls, model, opt, checkpoint=checkpoint)
        resumed = opt.train_from and checkpoint is not None
        optimizer.options = checkpoint["opt"] if resumed and opt.reset_optim in ("none", "states") else opt
        if resumed:
            for line in _origin_of_rate(optimizer, opt, checkpoint["opt"]):
                logger.info(line)
        return optimizer

    return classmethod(from_opt)


def _origin_of_rate(optimizer, opt, checkpoint_opt) -> list[str]:
    """Lines that say what the learning rate is now, and where each part of it comes from."""
    from_checkpoint = optimizer.options is checkpoint_opt
    origin = "the checkpoint" if from_checkpoint else "the configuration"
    rate, initial = optimizer.learning_rate(), optimizer._learning_rate
    line = f"Learning rate at step {optimizer.training_step}: {rate:g} (`learning_rate` {initial:g} from {origin}"
    lines = [
        f"{line}, times {rate / initial if initial else 1:g} by its schedule); `reset_optim` is {opt.reset_optim}."
    ]
    if from_checkpoint:
        for name in _FOLLOWED:
            given, used = getattr(opt, name, None), getattr(checkpoint_opt, name, None)
            if given != used:
                lines.append(
                    f"`{name}: {given}` of the configuration is not used: `reset_optim: {opt.reset_optim}` keeps the "
                    f"checkpoint's {used}; `reset_optim: keep_states` takes the configuration's."
                )
    return lines
