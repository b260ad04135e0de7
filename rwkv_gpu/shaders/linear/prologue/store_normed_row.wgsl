// The first workgroup writes down what it has normed, for who puts it into the state.
@group(0) @binding(13) var<storage, read_write> normed_row: array<vec4f>;   // [D / 4]

fn store_normed(d: u32, value: vec4f) {
    if is_first_workgroup {
        normed_row[d] = value;
    }
}
