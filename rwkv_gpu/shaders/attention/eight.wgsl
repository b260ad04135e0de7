// 8 dims of a head.
struct Eight {
    low: vec4f,
    high: vec4f,
}
