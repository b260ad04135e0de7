// A query sees its own chunk of WINDOW positions.
fn first_seen(position: u32) -> u32 { return position / WINDOW * WINDOW; }

fn sees(query: vec4u, key: u32) -> vec4<bool> { return (vec4u(key) <= query) & (vec4u(key) >= query / WINDOW * WINDOW); }
