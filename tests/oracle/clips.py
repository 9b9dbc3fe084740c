"""Write `run/audio/tests/clips/`: a tone of 440 Hz to the left and of 660 Hz to the right, in each format: `python clips.py` (soundfile, av)."""

from pathlib import Path

import av
import numpy as np
import soundfile

OUT = Path(__file__).parents[2] / "run" / "audio" / "tests" / "clips"
RATE, SECONDS = 44_100, 0.6
TIME = np.arange(int(RATE * SECONDS)) / RATE
TONES = np.stack([0.4 * np.sin(2 * np.pi * hertz * TIME) for hertz in (440, 660)], 1)


def main():
    OUT.mkdir(exist_ok=True)
    for name, container, encoding in [("tones.flac", "FLAC", "PCM_16"), ("tones.ogg", "OGG", "VORBIS"), ("tones.mp3", "MP3", "MPEG_LAYER_III"), ("opus.ogg", "OGG", "OPUS")]:
        rate = 48_000 if encoding == "OPUS" else RATE
        soundfile.write(OUT / name, TONES, rate, format=container, subtype=encoding)
    with av.open(str(OUT / "tones.m4a"), "w", format="ipod") as out:
        stream = out.add_stream("aac", rate=RATE, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(TONES.T, np.float32), format="fltp", layout="stereo")
        frame.sample_rate = RATE
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            out.mux(packet)


main()
