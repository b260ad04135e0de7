// W has no further columns.
const ADAPTER_STEPS = 0u;

alias AdapterColumns = u32;

fn ask_adapters(_step: u32, _lane: u32) -> AdapterColumns { return 0u; }
fn stage_adapters(_asked: AdapterColumns, _lane: u32) {}
