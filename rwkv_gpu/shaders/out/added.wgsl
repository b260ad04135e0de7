const PER_OUT = 1u;
fn beside(_matrix: Matrix, _t: u32, _row: u32) -> vec2f { return vec2f(); }
fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, _beside: vec2f) {
    add_to(row, dot * 0.25); add_to(row, dot * 0.75);
}
