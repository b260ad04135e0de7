// The first workgroup writes the row down for what reads it later, and what was added to is what the sequence has seen last:
// every reader of the state came before.
@group(0) @binding(13) var<storage, read_write> whole: array<vec4f>;    // [D / 4]
@group(0) @binding(14) var<storage, read_write> last: array<vec4f>;     // [states, D / 4]

fn pass_on(d: u32, value: vec4f) {
    if leads {
        whole[d] = value;
        last[segment.written * (D / 4u) + d] = x[d];
    }
}
