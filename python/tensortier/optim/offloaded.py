"""What an optimizer of torch needs to have its state in a store."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from tensortier import _tensortier
from tensortier.optim import loading
from tensortier.optim.attach import Attachment, refuse_distributed, refuse_scaler
from tensortier.optim.hand_over import hand_over
from tensortier.optim.home import Home
from tensortier.optim.numbers import check_numbers, numbers_of
from tensortier.optim.params import Known, check_known, index_of, known, names_of, new_params
from tensortier.optim.report import StepReport
from tensortier.optim.state import StateView, packed
from tensortier.optim.tensors import check_parameter, described
from tensortier.store import Store

#: Tells apart the optimizers of one store.
_numbers = itertools.count()

_STATES = {"auto": None, "fp32": "fp32", "split": "split"}
_NON_FINITE = ("apply", "skip", "raise")


class Offloaded(torch.optim.Optimizer):
    """An optimizer whose state lives in a store; :class:`tensortier.Adam` has the arguments."""

    #: GradScaler leaves it to the step to unscale and to skip.
    _step_supports_amp_scaling = True
    #: Whether weight decay is decoupled whatever a group says.
    _decoupled = False

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        store: Store | None,
        host_memory: int | str | None,
        paths: Any,
        state: str,
        non_finite: str,
    ) -> None:
        if state not in _STATES:
            raise ValueError(f'state is {state!r}; use "auto", "fp32" or "split"')
        if non_finite not in _NON_FINITE:
            raise ValueError(f'non_finite is {non_finite!r}; use "apply", "skip" or "raise"')
        self._home = Home(store, host_memory, paths)
        self.non_finite = non_finite
        #: The report of the last step, if there was one.
        self.last_step: StepReport | None = None
        self._precision = _STATES[state]
        self._native: Any = None
        #: What the native side was told of its parameters.
        self._known: list[Known] = []
        self._closed = False
        self._attachment: Attachment | None = None
        check_numbers(defaults)
        super().__init__(params, defaults)

    @property
    def state(self) -> StateView:  # type: ignore[override]
        """The state of each parameter that was updated, read from the store on access."""
        # Not kept: it and the optimizer would hold each other, and with them the store's memory.
        return StateView(self)

    @state.setter
    def state(self, _: Any) -> None:
        # The constructor of torch's gives an empty one before there are groups.
        if hasattr(self, "param_groups"):
            text = "the state lives in the store; use load_state_dict(), for instance of an empty state"
            raise AttributeError(text)

    # Parameters and their groups.

    def _params(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    def _name(self, index: int) -> str:
        return names_of(self.param_groups)[index]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, at any time between two steps."""
        super().add_param_group(param_group)
        first = sum(len(group["params"]) for group in self.param_groups[:-1])
        group = self.param_groups[-1]
        try:
            if self._decoupled:
                group["decoupled_weight_decay"] = True
            check_numbers(group)
            if len({id(param) for param in group["params"]}) != len(group["params"]):
                raise ValueError("a parameter is listed more than once; list it once")
            new = new_params([group], first)
            if self._native is not None:
                self._native.add_group(numbers_of(group), new)
                self._known += known([group])
        except BaseException:
            self.param_groups.pop()
            raise
        if self._attachment is not None:
            self._attachment.add(first, group["params"])

    # The native side.

    def _open(self) -> Any:
        """Returns the native optimizer, opened at its first need."""
        if self._native is None:
            self._replace(self._opened(self.param_groups))
        return self._native

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ValueError("the optimizer is closed, and its state is gone; nothing was done")

    def _opened(self, groups: Sequence[Mapping[str, Any]]) -> Any:
        self._refuse_closed()
        new = new_params(groups)
        native = _tensortier.Optimizer(
            self._home.open()._native,
            f"optimizer-{os.getpid()}-{next(_numbers)}",
            new,
            [numbers_of(group) for group in groups],
            precision=self._precision,
            host_memory=self._home.host_memory,
            threads=torch.get_num_threads(),
        )
        if self._attachment is not None:
            self._attachment.open(native)
        return native

    def _weights(self, new: bool = False) -> list[Any]:
        """Returns where all weights lie; unless for `new` state, only those that have it already."""
        params, names = list(self._params()), names_of(self.param_groups)
        if not new:
            check_known(self._known, params, names)
        for param, name in zip(params, names):
            check_parameter(param, name)
        return [described(param) for param in params]

    def close(self) -> None:
        """Ends the optimizer, and the store that it has for itself. The state goes: save it before."""
        self.detach()
        self._closed = True
        self._replace(None)
        self._home.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Steps.

    @torch._disable_dynamo
    @torch.no_grad()
    def step(
        self, closure: Callable[[], Any] | None = None, *, max_norm: float | None = None
    ) -> Any:
        """Makes one step, or the rest of one that was interrupted.

        Args:
            closure: Evaluates the model again and returns the loss, which is returned.
            max_norm: Clips the gradients of all parameters together to this norm, as
                ``torch.nn.utils.clip_grad_norm_`` does, without changing them.

        Raises:
            StepInterrupted: It stopped on its way, for an error or for Ctrl-C. Nothing is lost: the
                next call with the same gradients does the rest, with the same bits.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            self._apply(max_norm)
        except BaseException:
            # GradScaler leaves them behind then, and multiplies the scale with it the next time.
            self.__dict__.pop("grad_scale", None)
            self.__dict__.pop("found_inf", None)
            raise
        return loss

    def _apply(self, max_norm: float | None) -> None:
        """Makes a step with the gradients that are there."""
        scale = getattr(self, "grad_scale", None)
        found_inf = getattr(self, "found_inf", None)
        names, taken = names_of(self.param_groups), []
        if self._native is not None:
            check_known(self._known, self._params(), names)
            taken = self._native.accumulated()
        if found_inf is not None:
            if self._attachment is not None or any(taken):
                refuse_scaler()
            if bool(found_inf):
                return
        params, active, alive = hand_over(self._params(), names, taken)
        if not active and self._native is None:
            return
        native = self._open()
        try:
            told = native.step(
                params,
                [numbers_of(group) for group in self.param_groups],
                max_norm=max_norm,
                loss_scale=1.0 if scale is None else float(scale),
                non_finite=self.non_finite,
            )
        except (_tensortier.StepInterrupted, KeyboardInterrupt):
            increment_version(active)
            raise
        finally:
            del alive
        self.last_step = StepReport(**told)
        if self.last_step.applied:
            # Else a graph that needs the old weights would go backward silently wrong.
            increment_version(active)

    @torch._disable_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients, those too that were handed over during the backward pass."""
        super().zero_grad(set_to_none)
        if self._native is not None and any(self._native.accumulated()):
            self._native.clear_gradients()

    def attach(self, *, accumulate: str = "same", in_store: bool = False) -> None:
        """Takes gradients during the backward pass, as soon as they are made, and free ``.grad``.

        Clip by ``step(max_norm=...)``, and begin anew by ``zero_grad()`` of the optimizer: what else
        looks at ``.grad`` finds nothing, the model's ``zero_grad()`` too.

        Args:
            accumulate: In which type they are summed over micro-batches: ``"same"`` is the gradients'
                own (float32 if the parameters are of several), ``"fp32"`` float32.
            in_store: Keep them in what memory of the store the state leaves and on its paths, instead
                of in memory of their own.
        """
        if self._attachment is not None:
            raise RuntimeError("attach() was called already; call detach() first")
        refuse_distributed()
        for param, name in zip(self._params(), names_of(self.param_groups)):
            if param.grad is not None:
                raise RuntimeError(f"{name} has a gradient already; call zero_grad() first")
        attachment = Attachment(self, accumulate, in_store)
        if self._native is not None:
            attachment.open(self._native)
        attachment.add(0, list(self._params()))
        self._attachment = attachment

    def detach(self) -> None:
        """Takes gradients from ``.grad`` again. What was handed over already counts in the next step."""
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None

    def refresh_masters(self, names: Iterable[str | Tensor] | None = None) -> None:
        """Takes weights as they are for their masters, after they were changed outside of a step.

        Args:
            names: The names of the parameters, or the parameters; all of them if left out.
        """
        params, all_names = list(self._params()), names_of(self.param_groups)
        if names is None:
            chosen = list(range(len(params)))
        else:
            chosen = [index_of(name, params, all_names) for name in names]
        if self._native is not None:
            self._native.refresh_masters(chosen)

    # State.

    @torch._disable_dynamo
    def state_dict(self, *, lazy: bool = False) -> dict[str, Any]:
        """Returns the state in torch's layout.

        It has one key more for weights with a master: ``master_param``.

        Args:
            lazy: Have each parameter's state as a mapping that reads a tensor from the store on
                access, instead of all tensors in memory. It shows the state of the moment of access.
        """
        self._refuse_closed()
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        saved = packed(self, lazy)
        for after in self._optimizer_state_dict_post_hooks.values():
            replaced = after(self, saved)
            saved = saved if replaced is None else replaced
        return saved

    @torch._disable_dynamo
    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a state of torch's layout, from this optimizer or from torch's.

        Weights become their ``master_param``, rounded, where there is one; else they stay, and are
        the masters of the next step. Until it is done the old state stays in the store too. Gradients
        that were handed over before the load are forgotten.

        Raises:
            KeyError: Something is missing. Nothing was changed.
            ValueError: Something does not fit. Nothing was changed.
            HalfLoaded: Reading or the store failed on the way.
        """
        saved = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = before(self, saved)
            saved = saved if replaced is None else replaced
        fixed = {"decoupled_weight_decay": True} if self._decoupled else {}
        here = self.param_groups
        groups, ids = loading.new_groups(here, saved["param_groups"], self.defaults, fixed)
        entries = loading.check_state(saved["state"], ids, groups)
        native = None
        if any(entry is not None for entry in entries):
            native = self._opened(groups)
            self._restore(native, entries)
        self._replace(native)
        for here, group in zip(self.param_groups, groups):
            here.clear()
            here.update(group)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _restore(self, native: Any, entries: Sequence[Mapping[str, Any] | None]) -> None:
        updates = [0 if entry is None else int(loading.updates_of(entry)) for entry in entries]
        masters = [entry is not None and "master_param" in entry for entry in entries]
        changed = [param for param, master in zip(self._params(), masters) if master]
        try:
            native.restore(self._weights(new=True), updates, masters, loading.Reader(entries))
        except _tensortier.HalfLoaded:
            self._replace(native)
            increment_version(changed)
            raise
        except BaseException:
            native.close()
            raise
        increment_version(changed)

    def _replace(self, native: Any) -> None:
        old, self._native = self._native, native
        self._known = [] if native is None else known(self.param_groups)
        if old is not None:
            old.close()

    @torch.no_grad()
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes weights and state to one safetensors file, streamed within the store's memory.

        The file appears under its name when it is whole and durable.
        """
        self._open().export(os.fspath(path), self._weights())

    @torch.no_grad()
    def load(self, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
        """Takes weights, state and hyper-parameters from a file of :meth:`save`.

        It is streamed within the store's memory, and goes on with the same bits. Files that several
        ranks wrote together are given as a list. Gradients that were handed over before are forgotten.

        Raises:
            OSError: A file cannot be read. Nothing was changed.
            ValueError: Something in a file is damaged or does not fit. Nothing was changed.
            HalfLoaded: Reading or the store failed on the way.
        """
        files = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        native, weights = self._open(), self._weights()
        try:
            groups = native.import_from([os.fspath(file) for file in files], weights)
        except _tensortier.HalfLoaded:
            increment_version(list(self._params()))
            raise
        increment_version(list(self._params()))
        for group, numbers in zip(self.param_groups, groups):
            _, lr, beta1, beta2, eps, weight_decay, _, maximize = numbers
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
            group.update(betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
            group["maximize"] = maximize

    def explain(self) -> dict[str, Any]:
        """Returns what lives where: subgroups, bytes of state, memory, instructions, threads."""
        return self._open().explain()

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} of tensortier cannot be copied or pickled: its state lives in a "
            "store. Use state_dict(), or save() and load()"
        )
