// The row before, as the state of the sequence holds it; nothing for a fresh one. Row t is of segment t.
@group(0) @binding(2) var<storage, read> shift_state: array<f32>;       // [states, D]
@group(0) @binding(7) var<storage, read> segments: array<Segment>;      // [T]

fn before_at(t: u32, d: u32) -> f32 {
    return select(shift_state[segments[t].source * D + d], 0.0, segments[t].start == 0u);
}
