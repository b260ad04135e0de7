// The range of keys that a query sees.

//# both: A query sees what is at most half of WINDOW positions away from it in the text, before it and behind.
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
