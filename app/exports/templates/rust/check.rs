//! Multiplies and compares with float64. The timing loop is tilewise_check.c's, which is built beside this.
#[allow(dead_code)] // it has more than a check needs
mod tilewise_gemm;
mod tilewise_problem;
use tilewise_gemm::{Gemm, Sizes};
use tilewise_problem::*;

/// A number that every element type holds exactly: 1/64 to 2, of either sign.
fn element(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let bits = *state >> 20;
    let magnitude = (bits % 128 + 1) as f64 / 64.0;
    if bits & 4096 == 0 { -magnitude } else { magnitude }
}

fn encoded(value: f64) -> Element {
    ENCODE(value)
}

fn main() {
    let mut sizes = [M, N, K, BATCH];
    for (place, word) in sizes.iter_mut().zip(std::env::args().skip(1)) {
        *place = word.parse().expect("sizes are whole numbers");
    }
    let [m, n, k, batch] = sizes;
    let of = |rows: i64, columns: i64| (batch * rows * columns) as usize;
    let mut state = 42;
    let mut drawn = |count: usize| -> Vec<f64> { (0..count).map(|_| element(&mut state)).collect() };
    let (left, right) = (drawn(of(m, k)), drawn(of(k, n)));
    let a: Vec<Element> = left.iter().map(|&each| encoded(each)).collect();
    let b: Vec<Element> = right.iter().map(|&each| encoded(each)).collect();
    let mut c = vec![encoded(1.0); of(m, n)];
    let multiplied = Gemm::open(0).and_then(|gemm| gemm.multiply_host(&a, &b, &mut c, Sizes { m, n, k, batch }));
    if let Err(error) = multiplied {
        eprintln!("{}", error);
        std::process::exit(2);
    }
    let all = batch * m * n;
    let mut largest: f64 = 0.0;
    for look in 0..all.min(4096) {
        let at = look * (all / all.min(4096));
        let (number, row, column) = (at / (m * n), at / n % m, at % n);
        let (mut sum, mut magnitude) = (0.0, 0.0);
        for q in 0..k {
            let of_a = number * m * k + if TRANS_A { q * m + row } else { row * k + q };
            let of_b = number * k * n + if TRANS_B { column * k + q } else { q * n + column };
            let product = left[of_a as usize] * right[of_b as usize];
            sum += product;
            magnitude += product.abs();
        }
        let error = (DECODE(c[at as usize]) - sum).abs() / magnitude;
        largest = if error <= largest { largest } else { error };
    }
    let bound = PER_K * k as f64 + ROUNDING;
    println!("{{\"max_scaled\": {:e}, \"bound\": {:e}, \"right\": {}}}", largest, bound, largest <= bound);
    std::process::exit(if largest <= bound { 0 } else { 1 });
}
