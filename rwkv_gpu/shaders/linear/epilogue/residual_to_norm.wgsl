// What is added, where the sum is normed next: the gain comes with it.
@group(0) @binding(5) var<storage, read> residual: array<f32>;  // as y
@group(0) @binding(14) var<storage, read> next_gain: array<f32>;    // [M]

var<private> gain: f32;     // of the column that a lane has stored last

fn residual_at(i: u32) -> f32 { return residual[i]; }
fn state_value(i: u32) -> f32 { return next_gain[i % table.matrix[0].stride]; }
fn save_state(_i: u32, x: f32) { gain = x; }
