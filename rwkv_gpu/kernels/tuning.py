"""Which configuration of a kernel serves which work, chosen for a device."""

from dataclasses import dataclass, replace

from .expert_config import EXPERT_TILE, ExpertConfig, expert_gemv
from .gemm_config import MANY, GemmConfig


def expert_ladder(
    wg: int, lanes_per_row: int, subgroup_width: int, summing: tuple[int, int] = (0, 0)
) -> tuple[tuple[float, ExpertConfig], ...]:
    """Choices as they come, then a few to a tile, then tiles of decoded weights."""
    few = [
        (bound, expert_gemv(wg, lanes_per_row, 4, tb, subgroup_width=subgroup_width, summing=summing))
        for bound, tb in ((1.5, 1), (3, 2), (6, 4))
    ]
    return (*few, (MANY, EXPERT_TILE))


@dataclass(frozen=True)
class Size:
    """Products of up to so many rows of x with so many rows and columns of W."""

    rows: int
    out: int = MANY
    width: int = MANY
    packed: bool = False  # whether only of formats of small integers
    run: int = 0  # that so many weights at least share a scale
    more_than: int = 0  # rows of x
    least: int = 0  # rows and columns of W
    rounded: bool = False  # whether only of an x that whatever makes it can write as float16


@dataclass(frozen=True)
class Tuning:
    """How work is spread over lanes. Every choice gives the same answer; some are faster."""

    row_lanes: int  # lanes that share one row of a norm, a softmax
    map_lanes: int  # lanes of a workgroup that maps element by element
    reduce: str  # the part that sums over lanes: workgroup, subgroup, one_subgroup
    linear: tuple[tuple[int, GemmConfig], ...]  # up to so many rows, this shape; ascending
    linear_short: tuple[tuple[int, GemmConfig], ...] = ()  # the same for formats whose runs are of 16 weights
    experts: tuple[tuple[float, ExpertConfig], ...] = expert_ladder(64, 16, 1, (64, 4))  # up to so many choices of each
    experts_short: tuple[
        tuple[float, ExpertConfig], ...
    ] = ()  # as linear_short; of equal tb, so that one sort serves all
    heads: tuple[tuple[float, ExpertConfig], ...] = ()  # of products by head, up to so many rows of x; else as experts
    head_unit_rows: int = 32  # of x, up to which products by head on matrix units round these themselves, in one unit
    float_choices: float = MANY  # of an expert of MXFP4, up to which other kernels than those on matrix units may serve
    attention_on_matrix_units: bool = False  # of prompts, over keys and values in float16
    attention_matrix_groups: int = 264  # workgroups that attention of a short prompt is cut into there at most
    state_space_on_matrix_units: bool = False  # prompts of Mamba-2 by chunks
    attention_lanes: int = 64  # of a workgroup that attends
    rolls_loops: bool = (
        False  # whether attention hides where loops end from a compiler that would unroll them beyond its registers
    )
    attention_run: int = 256  # positions that it sees at least, in decode
    attention_groups: int = 4096  # workgroups that decode is cut into at most, for so many keep any device busy
    decode_matrix_least: int = 0  # positions of all sequences, from which decode attends on matrix units; 0 is never
    decode_matrix_sharing: int = 4  # heads of queries for one of keys, from which it does
    decode_matrix_size: int = 64  # of a head, up to which it does
    decode_matrix_groups: int = 2112  # workgroups that decode is cut into there at most
    latent_run: int = 32  # positions of latents that a workgroup on matrix units sees at least, in decode
    latent_groups: int = 128  # workgroups that decode over latents is cut into there at most
    latent_prefetch: int = 1  # blocks of latents that such a workgroup loads ahead: none or one
    decode_lanes_per_key: int = (
        0  # lanes that share a key of 128 numbers in decode, of one subgroup; with none, each lane has keys of its own
    )
    decode_lanes: int = 128  # of a workgroup of such lanes
    decode_groups: int = 392  # workgroups of them that decode is cut into at most: three for each processor of an H200
    decode_prefetch: int = 2  # keys that such a lane loads at a time
    decode_prefetched: int = MANY  # numbers of these keys, at most: a lane has 40 of a key in heads of 80
    last_workgroup_joins: bool = (
        False  # whether the last workgroup joins the runs, where the device allows it, or another dispatch
    )
    fuses_token_shift: bool = (
        False  # whether products of few rows norm, shift and mix x or convolve it themselves, or another dispatch
    )
    token_shift_rows: int = 1  # rows of a step, each of a sequence of its own, up to which they may
    state_lanes_per_row: int = 0  # lanes that share a row of an RWKV state in decode; with none, it is as in prompts
    state_rows_per_lane: int = 1  # rows that such lanes share, at least
    chunk_tokens: int = 0  # tokens of a prompt that recurrences compute at once; with none, one after the other
    chunk_least_rows: int = 1  # of a step: few rows are faster one after the other
    chunk_state_rows: int = 16  # rows of a state that a workgroup takes from chunk to chunk
    chunk_rows_per_lane: int = 1  # of these, those of a lane
    chunk_lanes_per_row: int = 4  # lanes that share them, within a subgroup
    chunks_without_removal: bool = False  # whether recurrences that only add, as that of RWKV-6, do so, too
    state_space_chunks: bool = False  # whether that of Mamba-2, which has one decay for a whole head, does so, too
    sampling_lanes: int = 1024  # of a workgroup that looks for the token of a single row, at most
    lora_fusion_rows: int = 0  # rows of a step up to which they compute the second halves of LoRAs, too
    quantising_recurrences: int = 0  # columns from which other recurrences write integers for the product after them
    adapter_rows: int = 64  # rows of a step up to which products add what LoRA adapters give
    fuses_routing: bool = False  # whether products of each choice rank experts themselves, or another dispatch
    merged_rows: int = 0  # rows of a step up to which products of several formats share a dispatch
    merged_batch_rows: int = 0  # the same of routers and of writing latents, with the dispatch before
    # what is better for smaller matrices: the first that fits
    linear_sized: tuple[tuple[Size, GemmConfig], ...] = ()
    linear_packed: tuple[tuple[int, GemmConfig], ...] = ()  # else for formats of small integers, as far as it goes

    @property
    def on_matrix_units(self) -> bool:
        """Whether anything is computed on matrix units."""
        ladders = (self.linear, self.linear_short, self.linear_packed, self.linear_sized)
        products = any(config.fragment for ladder in ladders for _, config in ladder)
        experts = any(config.fragment for ladder in (self.experts, self.experts_short) for _, config in ladder)
        return products or experts or self.attention_on_matrix_units or self.state_space_on_matrix_units

    def gemm_config(
        self,
        rows: int,
        run: int = 32,
        out: int = MANY,
        width: int = MANY,
        packed: bool = False,
        quantised: bool = False,
        rounded: bool = False,
    ) -> GemmConfig:
        """The shape for a plan of so many rows and matrices of a size; beyond the last bound, the last.

        Where x can be staged whole, it is copied only if what writes it may write integers: `quantised`. `rounded` says
        that it may write float16.
        """
        for size, shape in self.linear_sized:
            format_fits = packed >= size.packed and run >= size.run
            able = quantised or not shape.copies or width > 32 * shape.staged
            able = able and (rounded or not size.rounded)
            fits = size.least <= min(out, width) and out <= size.out and width <= size.width
            if size.more_than < rows <= size.rows and fits and format_fits and able:
                return shape
        for bound, shape in self.linear_packed if packed else ():
            if rows <= bound:
                return shape
        ladder = self.linear_short if run < 32 and self.linear_short else self.linear
        return next((shape for bound, shape in ladder if rows <= bound), ladder[-1][1])

    def only(self, shape: GemmConfig) -> "Tuning":
        """The same with one shape for all products."""
        return replace(self, linear=((MANY, shape),), linear_short=(), linear_packed=(), linear_sized=())

    def merged(self, lead: GemmConfig, own: GemmConfig, packed: bool) -> GemmConfig:
        """The shape of less work that shares a dispatch with that of `lead`: workgroups of as many lanes."""
        if own.wg == lead.wg or lead.wg % own.subgroup_width:
            return own
        if packed and lead.kernel in ("linear/gemv_int", "linear/gemv_single_pass"):
            return replace(lead.multi_pass, r=1)  # few rows: for more workgroups
        if own.kernel == "linear/gemv":  # about as many rows for a workgroup as before
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
        """The shape for so many choices for each expert, on average; `integers` where x may become such.

        `floats` says that floats are made of W with less work than bytes. Heads are experts that every row chooses.
        """
        ladder = self.experts_short if run < 32 and self.experts_short else self.experts
        if heads:
            ladder = (*self.heads, *ladder)
        able = (
            shape
            for bound, shape in ladder
            if choices <= bound
            and (integers or shape.kernel != "moe/expert_gemv_int")
            and (shape.fragment or not floats or choices <= self.float_choices)
        )
        shape = next(able, ladder[-1][1])
        return shape if integers else shape.of_floats
