// LoRA adapters: products without them, and where their outputs lie.

//# alone: Products read x as it is: nothing is done beside A x.
const BESIDE = 0u;
const PADDED = 0u;

fn beside(_group: u32, _lane: u32) {}

//# no_columns: W has no further columns.
const ADAPTER_STEPS = 0u;

alias AdapterColumns = u32;

fn ask_adapters(_step: u32, _lane: u32) -> AdapterColumns { return 0u; }
fn stage_adapters(_asked: AdapterColumns, _lane: u32) {}

//# outputs: Where products find what adapters add to their rows
struct AdapterOutput {
    first: u32,     // row among those of all matrices
    adapted: u32,   // whether it has adapters
    b: u32,         // where B starts, as the kernel binds it
    low: u32,
    second: u32,    // that of rows 1, 3, 5 ..., where two matrices alternate
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

//# low/in_unit: low in units of x, which is not normed here: products on matrix units, which want it so, norm their sums.
const FINDS_COLUMNS = 0u;
const ROOTED = false;

fn low_scale(_squares: f32) -> f32 { return 1.0 / LOW_UNIT; }

fn put_columns(_t: u32, _first: f32, _end: f32) {}

//# low/normed
// low of x as it is, or normed, and which columns each row has of s, so that whoever adds B low goes through no others.
// needs norm: root
const FINDS_COLUMNS = 1u;
const ROOTED = NORMED;

fn low_scale(squares: f32) -> f32 { return root(squares, K); }

fn put_columns(t: u32, first: f32, end: f32) { low[COLUMNS_AT + t] = vec4f(first, end, 0.0, 0.0); }
