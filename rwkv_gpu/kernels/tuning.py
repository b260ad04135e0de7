"""The tuning of a device: the kernel and sizes for each kind of work. Its values are in profiles/*.toml."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from .expert_config import ExpertConfig
from .gemm_config import UNLIMITED, GemmConfig


@dataclass(frozen=True)
class GemmLimits:
    """The matrix products that a row of the table serves."""

    max_rows: int = UNLIMITED  # rows of x
    above_rows: int = 0  # more rows of x than these
    max_out: int = UNLIMITED  # rows of W
    max_width: int = UNLIMITED  # columns of W
    min_size: int = 0  # rows and columns of W
    packed: bool = False  # only formats of small integers
    min_run: int = 0  # weights that share a scale
    max_run: int = UNLIMITED
    rounded: bool = False  # only if the producer of x can round x to float16

    @property
    def sized(self) -> bool:
        """True if the limits depend on the size of W, its scales or the producer of x."""
        return replace(self, max_rows=UNLIMITED, above_rows=0, packed=False, max_run=UNLIMITED) != GemmLimits()

    def fit(self, rows: int, out: int, width: int, packed: bool, run: int) -> bool:
        """True if a product is within them."""
        return (
            self.above_rows < rows <= self.max_rows
            and self.min_size <= min(out, width)
            and out <= self.max_out
            and width <= self.max_width
            and packed >= self.packed
            and self.min_run <= run <= self.max_run
        )

    @property
    def rest(self) -> float | None:
        """The number of rows of x above which it serves every product; None if there is no such number."""
        return self.above_rows if self == GemmLimits(above_rows=self.above_rows) else None


@dataclass(frozen=True)
class ExpertLimits:
    """Limits of the expert products that a row of the table serves; choices are the average per expert."""

    max_choices: float = UNLIMITED
    above_choices: float = 0  # more choices than these
    max_run: int = UNLIMITED  # weights that share a scale
    heads: bool = False  # only per-head products: the heads are experts, and every row of x chooses all of them
    floats: bool = False  # only formats that are easier to decode to floats than to bytes

    def fit(self, choices: float, run: int, heads: bool, floats: bool) -> bool:
        """True if a product is within them."""
        within = self.above_choices < choices <= self.max_choices and run <= self.max_run
        return within and heads >= self.heads and floats >= self.floats

    @property
    def rest(self) -> float | None:
        """The number of choices above which this row serves every product; None if there is no such number."""
        return self.above_choices if self == ExpertLimits(above_choices=self.above_choices) else None


GemmTable = tuple[tuple[GemmLimits, GemmConfig], ...]
ExpertTable = tuple[tuple[ExpertLimits, ExpertConfig], ...]


@dataclass(frozen=True)
class LaneTuning:
    """Lanes of workgroups that reduce rows or map elements."""

    row_lanes: int  # lanes that reduce one row in a norm or a softmax, at most
    resident_lanes: int  # lanes that a device runs at once; steps with more rows than fit use fewer lanes per row
    map_lanes: int  # lanes of a workgroup that maps element by element
    sampling_lanes: int  # lanes that sample the token of a single row, at most
    reduce: str  # how lanes reduce: workgroup, subgroup or one_subgroup


@dataclass(frozen=True)
class AttentionTuning:
    """Sizes for attention over keys and values, and over latents."""

    prompts_on_matrix_units: bool  # prompts over a float16 cache use matrix units
    prompt_workgroups: int  # maximum number of workgroups that a short prompt on matrix units is split into
    workgroup_lanes: int  # lanes of a workgroup
    rolls_loops: bool  # prevents unrolling, where it would spill registers
    run_length: int  # positions of a run in decode, at least
    run_workgroups: int  # maximum number of workgroups that decode is split into
    lanes_per_key: int  # lanes of a subgroup that share a key of 128 numbers in decode; 0: each lane has its own keys
    decode_lanes: int  # lanes of a workgroup if lanes share keys
    decode_workgroups: int  # maximum number of workgroups if lanes share keys
    prefetch_keys: int  # keys that a lane loads at a time if lanes share keys
    prefetch_numbers: int  # maximum numbers of these keys
    matrix_decode_positions: int  # positions of all sequences from which decode uses matrix units; 0: never
    matrix_decode_sharing: int  # minimum query heads per KV head to use them
    matrix_decode_head_size: int  # maximum head size to use them
    matrix_decode_workgroups: int  # maximum number of workgroups in that case
    latent_run_length: int  # minimum positions of a run in decode over latents on matrix units
    latent_workgroups: int  # maximum number of workgroups for decode over latents on matrix units
    latent_prefetch: int  # blocks of latents that a workgroup loads ahead: 0 or 1


@dataclass(frozen=True)
class RecurrenceTuning:
    """Sizes for RWKV time mix, delta rules, lightning attention and state spaces."""

    state_lanes_per_row: int  # lanes that share a row of an RWKV state in decode; 0: as in prompts
    state_rows_per_lane: int  # minimum rows that these lanes share
    chunk_tokens: int  # tokens of a prompt that are computed at once; 0: one after the other
    chunk_min_rows: int  # rows of a step from which chunks are used
    chunk_state_rows: int  # rows of a state that a workgroup carries from chunk to chunk
    chunk_rows_per_lane: int  # rows of such a state per lane
    chunk_lanes_per_row: int  # lanes of a subgroup that share these rows
    chunks_without_removal: bool  # recurrences that only add, such as RWKV-6, also use chunks
    state_space_on_matrix_units: bool  # prompts of Mamba-2 use matrix units, in chunks


@dataclass(frozen=True)
class FusionTuning:
    """Which fusions and merged dispatches are faster, and for how many rows of a step."""

    fuses_token_shift: bool  # products of few rows norm, shift and mix x, or convolve it
    token_shift_rows: int  # maximum rows for that, one per sequence
    fuses_routing: bool  # products with experts rank the experts
    lora_rows: int  # rows up to which the time mix computes the second halves of its LoRAs
    quantising_width: int  # columns from which recurrences quantise their output for the next product; 0: never
    adapter_rows: int  # rows up to which products add the output of LoRA adapters
    merged_rows: int  # rows up to which products of several formats share a dispatch
    merged_batch_rows: int  # rows up to which routers and latent writes share the dispatch before them
    last_workgroup_reduces: bool  # the last workgroup reduces the parts of all, instead of another dispatch


@dataclass(frozen=True)
class Tuning:
    """How work is spread over lanes and kernels. It affects only speed and rounding."""

    lanes: LaneTuning
    attention: AttentionTuning
    recurrence: RecurrenceTuning
    fusion: FusionTuning
    gemm_table: GemmTable  # the first row that fits a matrix product serves it
    expert_table: ExpertTable  # the same for products with experts

    def changed(self, **values: Any) -> "Tuning":
        """The same tuning with other values, by name of a field of a group, or of a table."""
        groups = {GROUP_OF[name] for name in values if name in GROUP_OF}
        own = {name: value for name, value in values.items() if name not in GROUP_OF}
        for group in groups:
            some = {name: value for name, value in values.items() if GROUP_OF.get(name) == group}
            own[group] = replace(getattr(self, group), **some)
        return replace(self, **own)

    def value(self, name: str) -> Any:
        """The value of a field of a group, or a table, by name."""
        return getattr(getattr(self, GROUP_OF[name]) if name in GROUP_OF else self, name)

    @property
    def configs(self) -> Iterator[GemmConfig | ExpertConfig]:
        """The configurations of both tables."""
        yield from (config for _, config in self.gemm_table)
        yield from (config for _, config in self.expert_table)

    @property
    def on_matrix_units(self) -> bool:
        """True if anything is computed on matrix units."""
        others = self.attention.prompts_on_matrix_units or self.recurrence.state_space_on_matrix_units
        return others or any(config.fragment for config in self.configs)

    def gemm_config(
        self,
        rows: int,
        run: int = 32,
        out: int = UNLIMITED,
        width: int = UNLIMITED,
        packed: bool = False,
        quantised: bool = False,
        rounded: bool = False,
    ) -> GemmConfig:
        """The configuration for a number of rows and the size of a matrix; the last one if none fits.

        `quantised`: the producer of x can quantise it; otherwise an x that can be staged whole is not copied.
        `rounded`: the producer can round x to float16.
        """
        for limits, config in self.gemm_table:
            able = quantised or not config.copies or width > 32 * config.staged
            if limits.fit(rows, out, width, packed, run) and able and (rounded or not limits.rounded):
                return config
        return self.gemm_table[-1][1]

    def only(self, config: GemmConfig) -> "Tuning":
        """The same tuning with one configuration for all matrix products."""
        return replace(self, gemm_table=((GemmLimits(), config),))

    def only_experts(self, config: ExpertConfig) -> "Tuning":
        """The same tuning with one configuration for all products with experts and all per-head products."""
        return replace(self, expert_table=((ExpertLimits(), config),))

    def preferring(self, *rows: tuple[GemmLimits, GemmConfig]) -> "Tuning":
        """The same tuning with other configurations for some matrix products."""
        return replace(self, gemm_table=(*rows, *self.gemm_table))

    def merged(self, lead: GemmConfig, own: GemmConfig, packed: bool) -> GemmConfig:
        """Adapts `own` to share a dispatch with `lead`, which has more work: the workgroup sizes become equal."""
        if own.wg == lead.wg or lead.wg % own.subgroup_width:
            return own
        if packed and lead.kernel in ("linear/gemv_int", "linear/gemv_single_pass"):
            return replace(lead.multi_pass, r=1)  # few rows per workgroup, for more workgroups
        if own.kernel == "linear/gemv":  # keeps about the same number of rows per workgroup
            lanes_per_row = max(1, own.lanes_per_row * lead.wg // (own.wg * own.r))
            most = lead.wg & -lead.wg  # the largest power of two that divides the workgroup
            return replace(own, wg=lead.wg, lanes_per_row=min(1 << (lanes_per_row.bit_length() - 1), most), r=1)
        return (
            replace(own, wg=lead.wg)
            if own.kernel in ("linear/gemv_int", "linear/skinny_gemm") and lead.wg >= own.lanes_per_row
            else own
        )

    def expert_config(
        self, choices: float, run: int = 32, integers: bool = False, *, floats: bool = False, heads: bool = False
    ) -> ExpertConfig:
        """The configuration for an average number of choices per expert; `integers` if x may be quantised.

        `floats`: decoding W to floats costs less than decoding it to bytes. `heads`: a per-head product, whose heads
        act as experts that every row chooses.
        """
        for limits, config in self.expert_table:
            if limits.fit(choices, run, heads, floats) and (integers or config.of_floats == config):
                return config
        config = self.expert_table[-1][1]
        return config if integers else config.of_floats


GROUPS = {"lanes": LaneTuning, "attention": AttentionTuning, "recurrence": RecurrenceTuning, "fusion": FusionTuning}
GROUP_OF = {field.name: name for name, group in GROUPS.items() for field in fields(group)}  # no name occurs twice
