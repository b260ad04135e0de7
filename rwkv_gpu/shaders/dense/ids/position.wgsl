// The position of a row in its sequence, in place of a token.
@group(0) @binding(2) var<storage, read> places: array<vec2u>;  // [T] of position, row of all pages

fn token_of(t: u32) -> u32 { return places[t].x; }
