// What the normed y of a head is multiplied by: weight · then(gate)
// needs recurrence/delta_tensors or extra: parameter_at
// needs kernel: item_place
// needs lib/activation: activation
@group(0) @binding(8) var<storage, read> gate: array<vec4f>;            // [T, H, N / 4]

fn gain_at(block: Block, i: u32) -> vec4f {
    let given = gate[item_place(block, i)];
    let at = GAIN_AT + 4u * (i % N4);
    return vec4f(parameter_at(at), parameter_at(at + 1u), parameter_at(at + 2u), parameter_at(at + 3u)) * vec4f(
        activation(THEN, given.x), activation(THEN, given.y), activation(THEN, given.z), activation(THEN, given.w)
    );
}
