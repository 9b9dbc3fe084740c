//! Writes segments as subtitles.

use super::transcribe::{SpeechSegment, Transcript};

impl SpeechSegment {
    /// A cue of a `.srt` file, with the number `number`.
    pub fn srt(&self, number: usize) -> String {
        let text = line(&self.text).replace("-->", "->");
        format!("{number}\n{} --> {}\n{text}\n\n", clock(self.start, ','), clock(self.end, ','))
    }

    /// A cue of a `.vtt` file.
    pub fn vtt(&self) -> String {
        // <https://www.w3.org/TR/webvtt1/#webvtt-cue-text-span>
        let text = line(&self.text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        format!("{} --> {}\n{text}\n\n", clock(self.start, '.'), clock(self.end, '.'))
    }
}

impl Transcript {
    /// The first lines of a `.vtt` file.
    pub const VTT: &str = "WEBVTT\n\n";

    /// A `.srt` file (SubRip).
    pub fn srt(&self) -> String {
        (1..).zip(&self.segments).map(|(number, segment)| segment.srt(number)).collect()
    }

    /// A `.vtt` file (WebVTT).
    pub fn vtt(&self) -> String {
        let cues = self.segments.iter().map(SpeechSegment::vtt);
        std::iter::once(Self::VTT.to_owned()).chain(cues).collect()
    }
}

/// A blank line would end the cue.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Hours, minutes, seconds and milliseconds.
fn clock(seconds: f64, point: char) -> String {
    let all = (seconds.max(0.0) * 1000.0).round() as u64;
    let [hours, minutes, seconds] = [all / 3_600_000, all / 60_000 % 60, all / 1000 % 60];
    format!("{hours:02}:{minutes:02}:{seconds:02}{point}{:03}", all % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cues_have_the_forms_of_srt_and_vtt() {
        let segment = |start, end, text: &str| SpeechSegment {
            start,
            end,
            text: text.into(),
            ..SpeechSegment::default()
        };
        let segments = vec![segment(0.0, 2.5, " One\n\ntwo."), segment(3725.04, 3726.9996, " a --> <b> & c")];
        let transcript = Transcript { segments, ..Transcript::default() };
        let srt = "1\n00:00:00,000 --> 00:00:02,500\nOne two.\n\n2\n01:02:05,040 --> 01:02:07,000\na -> <b> & c\n\n";
        assert_eq!(transcript.srt(), srt);
        let vtt = "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nOne two.\n\n\
                   01:02:05.040 --> 01:02:07.000\na --&gt; &lt;b&gt; &amp; c\n\n";
        assert_eq!(transcript.vtt(), vtt);
    }
}
