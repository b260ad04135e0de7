// The range of keys that a query sees, from the position of its row. Positions beyond a block are those of lanes without a row.

//# after_first: A query sees all positions up to its own except the first.
fn first_seen(position: u32) -> u32 { return min(position, 1u); }

fn last_seen(_segment: u32, position: u32) -> u32 { return position; }

//# ahead: A query sees the last WINDOW positions, and all later ones of the step.
// needs attention/blocks_of_segments: end_of
fn first_seen(position: u32) -> u32 { return position - min(position, WINDOW - 1u); }

fn last_seen(segment: u32, _position: u32) -> u32 { return end_of(segment) - 1u; }

//# ends: A query sees the last WINDOW positions, and later ones up to its bound.
@group(0) @binding(10) var<storage, read> bounds: array<f32>;           // [T], the position after the last

fn first_seen(position: u32) -> u32 { return position - min(position, WINDOW - 1u); }

fn last_seen(segment: u32, position: u32) -> u32 {
    let row = segments[segment].first + position - segments[segment].start;
    return u32(bounds[min(row, step.rows - 1u)]) - 1u;
}

//# bounded: A query sees the positions from the first to the second of its bounds. The step has one sequence, from position 0 on.
@group(0) @binding(10) var<storage, read> bounds: array<vec2f>;         // [T]

fn first_seen(position: u32) -> u32 { return u32(bounds[min(position, step.rows - 1u)].x); }

fn last_seen(_segment: u32, position: u32) -> u32 { return u32(bounds[min(position, step.rows - 1u)].y) - 1u; }

//# both: A query sees positions of the text at a distance of at most half of WINDOW, in both directions.
// needs attention/blocks_of_segments: end_of
const FAR = WINDOW / 2u;

fn first_seen(position: u32) -> u32 { return position - min(position, FAR); }

// All rows of a text are in this step.
fn last_seen(segment: u32, position: u32) -> u32 { return min(position + FAR, end_of(segment) - 1u); }

//# chunk: A query sees its own chunk of WINDOW positions.
fn first_seen(position: u32) -> u32 { return position / WINDOW * WINDOW; }

fn last_seen(_segment: u32, position: u32) -> u32 { return position; }

//# window: A query sees the last WINDOW positions.
fn first_seen(position: u32) -> u32 { return position - min(position, WINDOW - 1u); }

fn last_seen(_segment: u32, position: u32) -> u32 { return position; }
