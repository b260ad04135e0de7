// Parts for LoRA adapters.

//# alone: Products read x unquantised, so the dispatch of A x does not also quantise x.
const BESIDE = 0u;
const PADDED = 0u;

fn extra_work(_group: u32, _lane: u32) {}

//# no_columns: W has no further columns.
const ADAPTER_STEPS = 0u;

alias AdapterColumns = u32;

fn ask_adapters(_step: u32, _lane: u32) -> AdapterColumns { return 0u; }
fn stage_adapters(_asked: AdapterColumns, _lane: u32) {}

//# outputs: The table of a product's adapters
struct AdapterOutput {
    first: u32,     // first row, counted over all matrices
    adapted: u32,   // nonzero if the product has adapters
    b: u32,         // start of B in its binding
    low: u32,
    second: u32,    // the start of B for rows 1, 3, 5 ..., if two matrices alternate
}

fn output_of(i: u32) -> AdapterOutput {
    var own = OUTPUTS[0];
    for (var n = 1u; n < ADAPTED; n++) {
        if i >= OUTPUTS[n].first {
            own = OUTPUTS[n];
        }
    }
    return own;
}

//# low/in_unit: low in units of x before its norm. Products on matrix units read it in this form, and norm their sums.
const FINDS_COLUMNS = 0u;
const ROOTED = false;

fn low_scale(_squares: f32) -> f32 { return 1.0 / LOW_UNIT; }

fn put_columns(_t: u32, _first: f32, _end: f32) {}

//# low/normed
// low of x, after an optional norm, and the range of nonzero columns of s for each row: B low skips all others.
// needs norm: root
const FINDS_COLUMNS = 1u;
const ROOTED = NORMED;

fn low_scale(squares: f32) -> f32 { return root(squares, K); }

fn put_columns(t: u32, first: f32, end: f32) { low[COLUMNS_AT + t] = vec4f(first, end, 0.0, 0.0); }
