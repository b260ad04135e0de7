// A query sees what is at most half of WINDOW positions away from it in the text, before it and behind.
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
