// state[1] = the state[0]-th number of a chain from state[1] on: one lane that works for a while      one workgroup
@group(0) @binding(0) var<storage, read_write> state: array<u32>;

@compute @workgroup_size(1)
fn main() {
    let rounds = state[0];
    var x = state[1] | 1u;
    for (var n = 0u; n < rounds; n++) {    // each number needs the one before: no compiler can skip any
        x ^= x << 13u;
        x ^= x >> 17u;
        x ^= x << 5u;
    }
    state[1] = x;
}
