// Word n of a plane, from what w binds, bound as words as well: nothing is picked out of a vec4.
@group(0) @binding(15) var<storage, read> words: array<u32>;

fn word_at(start: u32, n: u32) -> u32 { return words[4u * start + n]; }
