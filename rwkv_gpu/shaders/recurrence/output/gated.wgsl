// y = (S r) · gate
// needs inputs: gate_of
// needs recurrence/walk: item_place, y4
// needs y: write_y
fn last_of(block: Block, i: u32) -> vec4f {
    if i >= block.tokens * N4 {
        return vec4f();
    }
    return gate_of(item_place(block, i));
}

fn conclude(first: vec4f, block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        var last = first;
        if i != lane {
            last = last_of(block, i);
        }
        write_y(block, i, y4(i) * last);
    }
}
