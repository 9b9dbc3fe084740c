use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
    num_layers: usize,
    head_dim: Option<usize>,
    tied: bool,
    eps: f64,
}

model! {
    Net<T: Float>(Config) {
        dims { D = hidden_size, E = 4 }
        a: Linear[D -> E](biased),
        //                ^^^^^^ `Linear` has no setting `biased`; it has `bias`
        b: RmsNorm[D](epsilon = eps),
        //            ^^^^^^^ `RmsNorm` has no setting `epsilon`; it has `eps` and `style`
        c: RmsNorm[D](eps, style = one_minus),
        //            ^^^ `eps` needs a number: `eps = key` or a literal
        //                         ^^^^^^^^^ `style` is one of `scale`, `wide` and `one_plus`, not `one_minus`
        d: Weight[D](bias),
        //           ^^^^ `Weight` has no settings
        e: Linear[D -> E](bias = 1, bias),
        //                ^^^^ `bias` is on or off: `bias`, `bias = false` or `bias if key`
        //                          ^^^^ the setting `bias` is declared twice
        f: RmsNorm[D](style),
        //            ^^^^^ `style` is one of `scale`, `wide` and `one_plus`: `style = scale`
        fn forward(x: T[B, D]) -> T[B, D] { self.a(self.b(self.c(x))) * self.d() + self.e(self.f(x)) }
    }
}

fn main() {}
