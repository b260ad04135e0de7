// Queries of late positions have a larger scale: times 1 + TEMPERATURE · ln(1 + floor((position + SHIFT) / PERIOD)).
fn query_scale(position: u32) -> f32 {
    return SCALE * (1.0 + TEMPERATURE * log(1.0 + f32((position + SHIFT) / PERIOD)));
}
