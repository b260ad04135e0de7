// The first workgroup writes down what it has normed, for who puts it into the state. Lanes that have nothing to read read
// the first vec4 again, which lane 0 alone writes.
@group(0) @binding(13) var<storage, read_write> normed_row: array<vec4f>;   // [D / 4]

fn store_normed(d: u32, value: vec4f) {
    if is_first_workgroup && (d % D4 != 0u || own_lane == 0u) {
        normed_row[d] = value;
    }
}
