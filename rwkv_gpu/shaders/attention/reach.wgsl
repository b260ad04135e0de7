// The range of keys that a query sees.

//# after_first: A query sees all positions up to its own except the first.
fn first_seen(position: u32) -> u32 { return min(position, 1u); }

// The last position that a row sees.
fn last_seen(_segment: u32, position: u32) -> u32 { return position; }

fn sees(query: vec4u, key: u32, _end: u32) -> vec4<bool> { return (vec4u(key) <= query) & (vec4u(key) >= min(query, vec4u(1u))); }

//# ahead: A query sees the last WINDOW positions, and all later ones of the text.
// needs attention/blocks_of_segments: end_of
fn first_seen(position: u32) -> u32 { return position - min(position, WINDOW - 1u); }

// The last position that a row sees: all rows of its text are in this step.
fn last_seen(segment: u32, _position: u32) -> u32 { return end_of(segment) - 1u; }

fn sees(query: vec4u, key: u32, end: u32) -> vec4<bool> { return (vec4u(key + WINDOW) > query) & vec4<bool>(key < end); }

//# bounded: A query sees the positions from the first to the second of its bounds. The step has one sequence, from position 0 on.
@group(0) @binding(10) var<storage, read> bounds: array<vec2f>;         // [T]

fn first_seen(position: u32) -> u32 { return u32(bounds[position].x); }

// The last position that a row sees.
fn last_seen(_segment: u32, position: u32) -> u32 { return u32(bounds[position].y) - 1u; }

fn sees(query: vec4u, key: u32, end: u32) -> vec4<bool> {
    let last = step.rows - 1u;      // lanes without a row have positions after it
    let a = bounds[min(query.x, last)];
    let b = bounds[min(query.y, last)];
    let c = bounds[min(query.z, last)];
    let d = bounds[min(query.w, last)];
    let at = vec4f(f32(key));
    return (at >= vec4f(a.x, b.x, c.x, d.x)) & (at < vec4f(a.y, b.y, c.y, d.y)) & vec4<bool>(key < end);
}

//# both: A query sees positions of the text at a distance of at most half of WINDOW, in both directions.
// needs attention/blocks_of_segments: end_of
const FAR = WINDOW / 2u;

fn first_seen(position: u32) -> u32 { return position - min(position, FAR); }

// The last position that a row sees: all rows of its text are in this step.
fn last_seen(segment: u32, position: u32) -> u32 {
    return min(position + FAR, end_of(segment) - 1u);
}

fn sees(query: vec4u, key: u32, end: u32) -> vec4<bool> {
    return (vec4u(key + FAR) >= query) & (vec4u(key) <= query + FAR) & vec4<bool>(key < end);
}

//# chunk: A query sees its own chunk of WINDOW positions.
fn first_seen(position: u32) -> u32 { return position / WINDOW * WINDOW; }

// The last position that a row sees.
fn last_seen(_segment: u32, position: u32) -> u32 { return position; }

fn sees(query: vec4u, key: u32, _end: u32) -> vec4<bool> { return (vec4u(key) <= query) & (vec4u(key) >= query / WINDOW * WINDOW); }

//# window: A query sees the last WINDOW positions.
fn first_seen(position: u32) -> u32 { return position - min(position, WINDOW - 1u); }

// The last position that a row sees.
fn last_seen(_segment: u32, position: u32) -> u32 { return position; }

fn sees(query: vec4u, key: u32, _end: u32) -> vec4<bool> { return (vec4u(key) <= query) & (vec4u(key + WINDOW) > query); }
