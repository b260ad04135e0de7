// Every lane's value to all lanes of a subgroup of 8.
fn spread(v: vec4f) -> array<vec4f, 8> {
    return array<vec4f, 8>(
        subgroupBroadcast(v, 0u),
        subgroupBroadcast(v, 1u),
        subgroupBroadcast(v, 2u),
        subgroupBroadcast(v, 3u),
        subgroupBroadcast(v, 4u),
        subgroupBroadcast(v, 5u),
        subgroupBroadcast(v, 6u),
        subgroupBroadcast(v, 7u),
    );
}
