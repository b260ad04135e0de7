// Where products find what adapters add to their rows
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
