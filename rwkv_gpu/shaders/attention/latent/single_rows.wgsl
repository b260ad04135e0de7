// Queries where each sequence has one row: a block is Q of its heads, by a run of the context.
// needs attention/block: Block
// needs runs of rows: run_at
@group(0) @binding(3) var<storage, read> places: array<vec2u>;          // [T] of position, row of all pages

const SPLITS = (H + Q - 1u) / Q;

struct Part {
    block: Block,
    run: u32,
}

fn part_of(group: u32, lane: u32) -> Part {
    let place = run_at(group / SPLITS, lane);
    let t = place.x;
    let head = group % SPLITS * Q;
    var found = Block();
    if t < step.rows {
        found = Block(t * H + head, min(Q, H - head), places[t].x, t);
    }
    return Part(found, place.y);
}
