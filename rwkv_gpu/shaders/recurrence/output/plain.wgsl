// y = S r
// needs recurrence/walk: y4
// needs y: write_y
fn last_of(_block: Block, _i: u32) -> vec4f { return vec4f(); }

fn conclude(_first: vec4f, block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        write_y(block, i, y4(i));
    }
}
