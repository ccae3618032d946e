"""The optimizer: Adam in one kernel, the schedule of the paper, and a state that says which rate a run follows."""

from __future__ import annotations

import math
from argparse import Namespace

import torch
from onmt.utils import optimizers
from onmt.utils.logging import logger

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.plugin.heads import learned_alphas
from onmt_entmax.plugin.train.options import VALID_LOSS

_ONE_KERNEL = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)
_FUSED_ON = ("cpu", "cuda")
_SCHEDULE, _SCALER = "entmax_schedule", "entmax_scaler"
_RATE = "rate"  # of a group of parameters: factor of the learning rate
# options that say what the rate is and how it changes: with most values of `reset_optim` those of the checkpoint
FOLLOWED = (
    *("optim", "learning_rate", "learning_rate_decay", "decay_method", "max_grad_norm", "start_decay_steps"),
    *("decay_steps", "warmup_steps", "adam_beta1", "adam_beta2", "adagrad_accumulator_init", "learned_alpha_rate"),
)


# parts of an optimizer's state that have their parameter's shape
_MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum", "square_avg", "acc_delta"}


class ValidLossSchedule:
    """The schedule of the paper: multiplies the rate by ``decay`` whenever validation loss rises.

    The comparison is with the previous validation, not with the best one so far, as in the paper's code. A loss that
    is not a number counts as higher than any number, and the one after it is compared with the last that was one.

    Args:
        decay: above 0, at most 1; the paper uses 0.5.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.scale = 1.0  # product of all decays so far
        self.previous: float | None = None

    def update(self, loss: float) -> bool:
        """Take note of a validation's loss; returns whether the rate shrank."""
        finite = math.isfinite(loss)
        shrinks = self.previous is not None and (not finite or loss > self.previous)
        if shrinks:
            self.scale *= self.decay
        if finite:
            self.previous = loss
        return shrinks

    def __call__(self, step: int) -> float:
        """Factor of the learning rate; the same at every step between two validations."""
        return self.scale

    def state_dict(self) -> dict:
        """Plain data for a checkpoint; ``decay`` is an option and not part of it."""
        return {"scale": self.scale, "previous": self.previous}

    def load_state_dict(self, state: dict) -> None:
        """Go on from :meth:`state_dict`."""
        self.scale, self.previous = float(state["scale"]), state["previous"]


class Adam(torch.optim.Adam):
    """PyTorch's Adam; since PyTorch 2.4, on a CPU and on a GPU, with its kernel for all parameters at once.

    The choice is made at each step and not kept in the state, so that checkpoints fit every PyTorch. That kernel wants
    the count of steps on the parameters' device, where states of other kernels have it on the CPU.
    """

    def step(self, closure=None):
        """See ``torch.optim.Adam``."""
        moving = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        fused = _ONE_KERNEL and all(
            p.device.type in _FUSED_ON and p.is_floating_point() and not p.grad.is_sparse for p in moving
        )
        for parameter in moving if fused else ():
            state = self.state[parameter]
            if "step" in state:  # nothing to do but in the first step after a checkpoint was read
                state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=parameter.device)
        before = [(group["fused"], group["lr"]) for group in self.param_groups]
        for group in self.param_groups:
            group["fused"] = fused or group["fused"]
            group["lr"] *= group.get(_RATE, 1)
        try:
            return super().step(closure)
        finally:
            for group, (one_kernel, rate) in zip(self.param_groups, before):
                group["fused"], group["lr"] = one_kernel, rate


class Optimizer(optimizers.Optimizer):
    """Stock's optimizer whose state holds its schedule and gradient scaler too.

    Attributes:
        options: those that the rate follows: the configuration's or the checkpoint's.
    """

    options: Namespace

    @classmethod
    def from_opt(cls, model, opt: Namespace, checkpoint: dict | None = None) -> Optimizer:
        """Build the optimizer, going on from ``checkpoint`` as ``reset_optim`` says; see ``docs/training.md``.

        Without an optimizer's state (a released model) a new run begins; one of other parameters is a
        :class:`UserError`.
        """
        stored = checkpoint.get("optim") if checkpoint is not None and opt.reset_optim != "all" else None
        follows = stored is not None and opt.reset_optim in ("none", "states")
        followed = checkpoint["opt"] if follows else opt
        factor = getattr(followed, "learned_alpha_rate", None) or 1.0
        optimizer = cls(_torch_optimizer(model, followed, factor), followed.learning_rate, _schedule(followed))
        optimizer._max_grad_norm = followed.max_grad_norm or 0
        optimizer.options = followed
        if opt.model_dtype == "fp16":
            optimizer._use_half_precision(opt)
        if stored is not None:
            stored = dict(stored)
            if opt.reset_optim == "keep_states":  # the options are given anew: the rate starts at the one given
                stored.pop(_SCHEDULE, None)
            if opt.reset_optim == "states":
                stored.pop("optimizer", None)
            if opt.reset_optim == "keep_states":
                _check_kept(opt, checkpoint["opt"])
            check_state(stored, optimizer._optimizer, opt.train_from)
            given = [_settings(group) for group in getattr(optimizer._optimizer, "param_groups", ())]
            optimizer.load_state_dict(stored)
            if opt.reset_optim == "keep_states":  # PyTorch takes them from the state
                for group, settings in zip(getattr(optimizer._optimizer, "param_groups", ()), given):
                    group.update(settings)
        if checkpoint is not None:
            for line in _origin_of_rate(optimizer, opt, checkpoint["opt"] if follows else None):
                logger.info(line)
        return optimizer

    def _use_half_precision(self, opt: Namespace) -> None:
        """Scale gradients as stock does for this optimizer."""
        if opt.optim == "fusedadam":
            self._fp16 = "apex.amp" if opt.apex_opt_level in ("O0", "O1", "O2", "O3") else "legacy"
            return
        self._fp16 = "amp"
        try:
            self._scaler = torch.amp.GradScaler("cuda")
        except AttributeError:  # torch 2.2
            self._scaler = torch.cuda.amp.GradScaler()

    @property
    def schedule(self) -> ValidLossSchedule | None:
        """The schedule that follows validation loss, or None where another one (or none) was chosen."""
        decay = self._learning_rate_decay_fn
        return decay if isinstance(decay, ValidLossSchedule) else None

    def state_dict(self) -> dict:
        """Plain data for a checkpoint."""
        state = super().state_dict()
        if self.schedule is not None:
            state[_SCHEDULE] = self.schedule.state_dict()
        if self._scaler is not None:
            state[_SCALER] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on from :meth:`state_dict`, as far as it goes."""
        super().load_state_dict(state_dict)
        if self.schedule is not None and _SCHEDULE in state_dict:
            self.schedule.load_state_dict(state_dict[_SCHEDULE])
        if self._scaler is not None and state_dict.get(_SCALER):
            self._scaler.load_state_dict(state_dict[_SCALER])


def _settings(group: dict) -> dict:
    """What the options say of a group of parameters: all but the parameters and the rate, which the schedule sets."""
    return {name: value for name, value in group.items() if name not in ("params", "lr", "initial_lr")}


def _torch_optimizer(model, opt: Namespace, alpha_rate: float = 1.0):
    try:
        optimizer = optimizers.build_torch_optimizer(model, opt)
    except ImportError as error:
        raise invalid_setting("optim", opt.optim, f"A package that it needs is missing: {error}.") from error
    if type(optimizer) is not torch.optim.Adam:
        return optimizer
    (group,) = optimizer.param_groups
    settings = {name: group[name] for name in ("lr", "betas", "eps")}
    alphas = {id(parameter) for module in learned_alphas(model) for parameter in module.parameters()}
    if alpha_rate == 1 or not alphas:
        return Adam(group["params"], **settings)
    others = [parameter for parameter in group["params"] if id(parameter) not in alphas]
    own = [parameter for parameter in group["params"] if id(parameter) in alphas]
    return Adam([{"params": others}, {"params": own, _RATE: alpha_rate}], **settings)


def _schedule(opt: Namespace):
    if opt.decay_method == VALID_LOSS:
        return ValidLossSchedule(opt.learning_rate_decay)
    if opt.decay_method.startswith("noam") and opt.hidden_size < 1:  # a decoder of a size of its own
        opt = Namespace(**{**vars(opt), "hidden_size": opt.dec_hid_size})
    return optimizers.make_learning_rate_decay_fn(opt)


def _check_kept(opt: Namespace, before: Namespace) -> None:
    """Refuse options that a state kept by ``reset_optim: keep_states`` does not fit."""
    apart = [(getattr(one, "learned_alpha_rate", None) or 1.0) != 1 for one in (before, opt)]  # alphas in a group
    for name, fits in (("optim", before.optim == opt.optim), ("learned_alpha_rate", apart[0] == apart[1])):
        if not fits:
            kept = f"`reset_optim: keep_states` keeps the state of {getattr(before, name, None)}"
            raise invalid_setting(name, getattr(opt, name), f"{kept}; give `states`, or `all`.")


def check_state(stored: dict, optimizer, path: str) -> None:
    """Refuse a state that belongs to other parameters: with it, PyTorch's Adam would end the process, or train on."""
    states = stored.get("optimizer")
    if not isinstance(states, dict) or "param_groups" not in states:  # one state for each of several optimizers
        return
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    indices = [index for group in states["param_groups"] for index in group["params"]]
    problem = None
    if len(indices) != len(own):
        problem = f"it is of {len(indices)} parameters, and this run trains {len(own)}"
    else:
        for index, parameter in zip(indices, own):
            for name, moment in states["state"].get(index, {}).items():
                if name in _MOMENTS and moment.shape != parameter.shape:
                    sizes = f"shape {tuple(moment.shape)}, not {tuple(parameter.shape)}"
                    problem = problem or f"the one numbered {index} has {sizes}"
    if problem is not None:
        raise UserError(
            f"The optimizer's state in {path} does not fit: {problem}. Train the same parameters (`freeze_*`), or "
            "begin with a new state: `reset_optim: states`, or `all`."
        )


def _origin_of_rate(optimizer: Optimizer, opt: Namespace, checkpoint_opt: Namespace | None) -> list[str]:
    """Lines that say what the learning rate is now, and where each part of it comes from."""
    origin = "the configuration" if checkpoint_opt is None else "the checkpoint"
    rate, initial = optimizer.learning_rate(), optimizer._learning_rate
    line = f"Learning rate at step {optimizer.training_step}: {rate:g} (`learning_rate` {initial:g} from {origin}"
    lines = [
        f"{line}, times {rate / initial if initial else 1:g} by its schedule); `reset_optim` is {opt.reset_optim}."
    ]
    for name in FOLLOWED if checkpoint_opt is not None else ():
        given, used = getattr(opt, name, None), getattr(checkpoint_opt, name, None)
        if given != used and given is not None:
            lines.append(
                f"`{name}: {given}` of the configuration is not used: `reset_optim: {opt.reset_optim}` keeps the "
                f"checkpoint's {used}; `reset_optim: keep_states` takes the configuration's."
            )
    return lines
