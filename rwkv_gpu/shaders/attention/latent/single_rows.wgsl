// Queries where each sequence has one row: a block is Q of its heads.
// needs attention/block: Block
@group(0) @binding(3) var<storage, read> places: array<vec2u>;          // [T] of position, row of all pages

const SPLITS = (H + Q - 1u) / Q;

fn block_of(index: u32) -> Block {
    let t = index / SPLITS;
    let head = index % SPLITS * Q;
    var found = Block();
    if t < step.rows {
        found = Block(t * H + head, min(Q, H - head), places[t].x, t);
    }
    return found;
}
