// Numbers on their way to float16 of whom nobody knows the largest of their row: all are multiples of UNIT
//
// From 2^-14 to 2^16 units all bits of float16 are kept. What is smaller loses 2^-25 units at most, and what is larger
// becomes the largest: neither is seen in what a model computes, whose sums are of many such numbers.
const LARGEST_HALF = 65504.0;

// The word of a number and of that two lanes further: four neighbouring lanes have a four, of which the first two write two each.
fn word_of_two(value: f32) -> u32 {
    let own = in_units(vec4f(value)).x;
    return pack2x16float(vec2f(own, subgroupShuffleXor(own, 2u)));
}

fn in_units(values: vec4f) -> vec4f { return clamp(values / UNIT, vec4f(-LARGEST_HALF), vec4f(LARGEST_HALF)); }
