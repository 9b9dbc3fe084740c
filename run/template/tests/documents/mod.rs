//! Random JSON documents with numbers of all kinds, and the texts that Python prints for them.

/// A random document: its JSON text with random white space, and the text that Python's
/// `json.dumps(json.loads(text), ensure_ascii=False)` returns.
#[derive(Default)]
pub struct Document {
    pub text: String,
    pub dumped: String,
    /// The same text with the separators `,` and `:`.
    pub compact: String,
}

impl Document {
    /// Draws a document whose arrays and objects nest at most `depth` levels deep.
    pub fn new(random: &mut Random, depth: u64) -> Self {
        let mut document = Self::default();
        random.document(depth, &mut document);
        document
    }

    fn push(&mut self, text: &str, dumped: &str, compact: &str) {
        self.text.push_str(text);
        self.dumped.push_str(dumped);
        self.compact.push_str(compact);
    }
}

/// The generator SplitMix64. The same seed gives the same documents on every machine.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn digits(&mut self, most: u64) -> String {
        (0..1 + self.below(most)).map(|_| char::from(b'0' + self.below(10) as u8)).collect()
    }

    fn integer(&mut self) -> String {
        let digits = match self.below(6) {
            0 => self.below(100).to_string(),
            1 => self.next().to_string(),
            2 => ((1_u128 << self.below(127)) + u128::from(self.below(3)) - 1).to_string(),
            3 => (self.next() >> self.below(64)).to_string(),
            4 => u128::MAX.to_string(),
            _ => self.digits(60),
        };
        let digits = digits.trim_start_matches('0');
        let digits = if digits.is_empty() { "0" } else { digits };
        if self.below(2) == 0 { format!("-{digits}") } else { digits.to_owned() }
    }

    fn real(&mut self) -> String {
        let text = match self.below(6) {
            // Every bit pattern of a finite float is equally likely.
            0 => format!("{:e}", f64::from_bits(self.next())),
            1 => format!("{}.{}", self.below(100), self.digits(20)),
            2 => format!("{}.{}e{}", self.below(10), self.digits(25), self.below(680) as i64 - 350),
            3 => format!("{}E+{}", self.below(1000), self.below(30)),
            4 => format!("{:e}", f64::from_bits(self.below(1 << 52))), // a subnormal float
            _ => ["0.0", "1e16", "1e15", "0.0001", "0.00001", "1e400", "5e-324", "9007199254740993.0"]
                [self.below(8) as usize]
                .to_owned(),
        };
        let text = if text.contains(['N', 'i']) { "53.630839129292724".to_owned() } else { text };
        let text = if text.contains(['.', 'e', 'E']) { text } else { text + ".5" };
        let text = text.trim_start_matches('-');
        if self.below(2) == 0 { format!("-{text}") } else { text.to_owned() }
    }

    fn document(&mut self, depth: u64, out: &mut Document) {
        match self.below(if depth == 0 { 7 } else { 10 }) {
            0..=2 => {
                let text = self.integer();
                let dumped = if text == "-0" { "0" } else { &text };
                out.push(&text, dumped, dumped);
            }
            3..=5 => {
                let text = self.real();
                let dumped = dumped(text.parse().expect("the text is a float"));
                out.push(&text, &dumped, &dumped);
            }
            6 => {
                let words =
                    ["null", "true", "\"1e400\"", "\"-0 \\\" 123456789012345678901\"", "\"é\\\\\"", "\"\""];
                let word = words[self.below(6) as usize];
                out.push(word, word, word);
            }
            kind => {
                let (open, close) = if kind < 9 { ("[", "]") } else { ("{", "}") };
                out.push(open, open, open);
                for i in 0..self.below(6) {
                    if i > 0 {
                        out.push([",", ", ", " ,\n"][self.below(3) as usize], ", ", ",");
                    }
                    if close == "}" {
                        let key = format!("\"key {i} 1e999\"");
                        out.push(&key, &key, &key);
                        out.push([":", " : "][self.below(2) as usize], ": ", ":");
                    }
                    self.document(depth - 1, out);
                }
                out.push(close, close, close);
            }
        }
    }
}

/// Python's `json.dumps` of a float: the fewest digits that give the same float, with an exponent
/// below 1e-4 and from 1e16.
fn dumped(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // Of two nearest texts with the fewest digits, Python takes the text with the even digit.
    let shortest = format!("{:e}", number.abs());
    let text = (0..17).map(|digits| format!("{:.digits$e}", number.abs()));
    let text = text.into_iter().find(|text| text.parse() == Ok(number.abs()));
    let text = text.filter(|text| text.len() <= shortest.len()).unwrap_or(shortest);
    let (digits, exponent) = text.split_once('e').expect("an exponent");
    let (digits, exponent): (String, i32) = (digits.replace('.', ""), exponent.parse().expect("an exponent"));
    let sign = if number.is_sign_negative() { "-" } else { "" };
    let whole = (exponent + 1) as usize;
    let body = match exponent {
        -4..0 => format!("0.{}{digits}", "0".repeat(-exponent as usize - 1)),
        0..16 if digits.len() > whole => format!("{}.{}", &digits[..whole], &digits[whole..]),
        0..16 => format!("{digits:0<whole$}.0"),
        _ => {
            let (first, rest) = digits.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{first}{point}{rest}e{sign}{:02}", exponent.abs())
        }
    };
    format!("{sign}{body}")
}
