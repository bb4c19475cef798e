// How elements are stored.

#[allow(dead_code)]
pub fn from_f32(value: f64) -> f32 {
    value as f32
}

#[allow(dead_code)]
pub fn of_f32(value: f32) -> f64 {
    value.into()
}

#[allow(dead_code)]
pub fn same(value: f64) -> f64 {
    value
}

#[allow(dead_code)]
pub fn to_half(value: f64) -> u16 {
    let bits = (value as f32).to_bits(); // normal as a half, and no bit is lost
    ((bits >> 16 & 0x8000) | (((bits & 0x7fff_ffff) >> 13) - ((127 - 15) << 10))) as u16
}

#[allow(dead_code)]
pub fn of_half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[allow(dead_code)]
pub fn to_bfloat16(value: f64) -> u16 {
    ((value as f32).to_bits() >> 16) as u16
}

#[allow(dead_code)]
pub fn of_bfloat16(bits: u16) -> f64 {
    f32::from_bits(u32::from(bits) << 16).into()
}
