/* kept.js - draws what the cache still has of a text: a strip of the whole, and the text itself.
 *
 *   const view = new KeptView({strip, text, note});
 *   view.show(kept, texts, nPrompt);   kept_positions of a choice, a text for each token
 *   view.drawStrip();                  again, after the width or the colours have changed */
import {canvasOf, colour, make, number, percent} from './dom.js';

/* A share for each token of the text. */
function sharesOf(kept) {
  const shares = new Float32Array(kept.n_tokens);
  for (const [first, last, share] of kept.ranges) shares.fill(share, first, last + 1);
  return shares;
}

export class KeptView {
  constructor(parts) {
    Object.assign(this, parts);
    this.shares = new Float32Array(0);
  }

  show(kept, texts, nPrompt) {
    this.shares = sharesOf(kept);
    this.nPrompt = nPrompt;
    const nSeen = this.shares.filter((share) => share > 0).length;
    const perHead = this.shares.reduce((sum, share) => sum + share, 0);
    this.note.textContent = `${number(nSeen)} of ${number(this.shares.length)} tokens are still there for `
      + `at least one head; a head has ${number(perHead)} on average.`
      + (kept.stride > 1 ? ` The text is told in steps of ${kept.stride} tokens.` : '');
    this.drawRuns(texts);
    this.drawStrip();
  }

  drawStrip() {
    if (this.shares.length === 0) return;
    const {context, width, height} = canvasOf(this.strip);
    const {shares, nPrompt} = this, n = shares.length, bottom = height - 3;
    context.fillStyle = colour('--line');
    context.fillRect(0, bottom, width, 1);
    context.fillStyle = colour('--kept');
    for (let x = 0; x < width; x++) {
      const first = Math.floor(x * n / width), end = Math.max(first + 1, Math.floor((x + 1) * n / width));
      const share = shares.subarray(first, end).reduce((sum, each) => sum + each, 0) / (end - first);
      context.fillRect(x, bottom - share * bottom, 1, share * bottom);
    }
    context.fillStyle = colour('--doubt');
    context.fillRect(Math.round(nPrompt * width / n), 0, 2, height);
  }

  /* One span for each run of tokens that have the same share. */
  drawRuns(texts) {
    const {shares, nPrompt} = this, spans = [];
    for (let first = 0, end; first < shares.length; first = end) {
      const share = shares[first], isAnswer = first >= nPrompt;
      for (end = first + 1; end < shares.length && shares[end] === share && end >= nPrompt === isAnswer;) end++;
      const span = make('span', {}, texts.slice(first, end).join(''));
      span.title = `${first === end - 1 ? `token ${first}` : `tokens ${first} to ${end - 1}`}: ${percent(share)} of the heads`;
      span.classList.toggle('gone', share === 0);
      span.classList.toggle('answer', isAnswer);
      span.style.setProperty('--share', String(share));
      spans.push(span);
    }
    this.text.replaceChildren(...spans);
  }
}
