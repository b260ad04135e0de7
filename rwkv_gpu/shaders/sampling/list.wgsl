// Of each row bounds, and what may be kept.
@group(0) @binding(6) var<storage, read_write> list: array<vec2u>;      // [R, 1 + 2 LIST]

fn tell_bounds(row: u32, bounds: vec2u, leads: bool) {
    if leads {
        list[row * (1u + 2u * LIST)] = bounds;
    }
}

fn bounds_at(row: u32) -> vec2u { return list[row * (1u + 2u * LIST)]; }
