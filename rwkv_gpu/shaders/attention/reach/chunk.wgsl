// A query sees its own chunk of WINDOW positions.
fn first_seen(position: u32) -> u32 { return position / WINDOW * WINDOW; }

// The last position that a row sees.
fn last_seen(_segment: u32, position: u32) -> u32 { return position; }

fn sees(query: vec4u, key: u32, _end: u32) -> vec4<bool> { return (vec4u(key) <= query) & (vec4u(key) >= query / WINDOW * WINDOW); }
