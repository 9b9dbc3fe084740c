//! One mistake causes one error, even if other code uses the types of the invalid declaration.

use tracewright_dsl::*;

pub mod net {
    use tracewright_dsl::*;

    #[derive(Clone)]
    pub struct Config {
        pub hidden_size: usize,
        pub num_layers: usize,
    }

    model! {
        /// A decoder.
        pub Net<T: Float>(Config) {
            dims { V = 11, D = hidden_size, L = num_layers, K = 2, E = D / K }
            cache { L of [K, E] }
            embed: Embedding[V, D],
            layers: [Layer; L],
            decoder: Linear[D -> W] = tied(embed),
            //                   ^ unknown axis `W`

            fn forward(tokens: i32[B, S], _at: Position, _cache: &mut Cache<T>) -> T[B, S, D] {
                self.layers.iter().fold(self.embed(tokens), |x, layer| layer.forward(x, 1.5).0)
            }
            fn logits(x: T[.., D]) -> f32[.., V] {
                self.decoder(x).to()
            }
        }

        /// A layer.
        pub Layer {
            norm: RmsNorm[D],
            fn forward(x: T[B, S, D], by: f64) -> (T[B, S, D], T[D]) { (self.norm(x) * by, self.norm.call(x).sum(B).sum(S)) }
        }
    }
}

use net::{Config, Layer, Net};

impl Net<F32> {
    fn first(&self) -> &Layer<F32> {
        &self.layers[0]
    }
}

struct Holder<T: Float> {
    net: Net<T>,
    head: Linear<T>,
}

impl<T: Float> Holder<T> {
    fn new(config: &Config) -> Result<Self, BuildError> {
        let net = Net::<T>::new(config)?;
        let head = net.decoder.clone();
        Ok(Self { net, head })
    }

    fn halves(&self, x: Tensor<T>) -> Tensor<T> {
        let layer: &Layer<T> = &self.net.layers[0];
        let (y, sum) = layer.forward(layer.norm(x), 2.0);
        y + sum + layer.norm.call(self.head.call(x))
    }
}

fn main() {
    let config = Config { hidden_size: 4, num_layers: 2 };
    let traced = Net::<F32>::trace(&config, &EntryPoint::all(1, 3, 7)).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", traced.trace);
    let holder = Holder::<Bf16>::new(&config).unwrap_or_else(|error| panic!("{error}"));
    let recording = Net::<F32>::record(&config).unwrap_or_else(|error| panic!("{error}"));
    let recording = recording.entry("embed", |net: &Net<F32>, x| net.embed(x), [("S", 3)]);
    println!("{}", recording.is_ok());
    let net = Net::<F32>::new(&config).unwrap_or_else(|error| panic!("{error}"));
    println!("{} {}", net.dim(Axis("D")), net.first().config.num_layers);
    let _ = |x, tokens: Tensor<I32>| (holder.halves(x), net.embed(tokens));
}
