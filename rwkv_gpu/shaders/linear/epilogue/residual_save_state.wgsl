// What is added was normed on the way to other products, and so is what the sequence has seen last: every reader of the state
// came before.
@group(0) @binding(5) var<storage, read> residual: array<f32>;      // [M]
@group(0) @binding(10) var<storage, read_write> shift_state: array<f32>; // [states, M]
@group(0) @binding(11) var<uniform> segment: Segment;
@group(0) @binding(13) var<storage, read> normed_row: array<f32>;       // [M]

fn residual_at(i: u32) -> f32 { return residual[i]; }
fn state_value(i: u32) -> f32 { return normed_row[i]; }
fn save_state(i: u32, x: f32) { shift_state[segment.written * table.matrix[0].stride + i] = x; }
