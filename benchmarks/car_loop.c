// The limit: Mountain Cars, a policy and a critic of two tanh layers of 64, and local iterations of PPO, by hand in C.
//
// Rows of 64 numbers, one per unit, fill four vectors of AVX-512. All matrix products are sums of such rows: `multiply`.
// In favour of the limit, filters are not updated, random numbers come from faster generators than the package's, and
// the old distribution of a step is kept from playing, where the package computes it anew.
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS = 2, UNITS = 64, MINIBATCH = 128, BLOCK = 48 };  // BLOCK cars run side by side
enum { LANES = 16, VECTORS = UNITS / LANES, TILE = 8, PANEL = 2 };  // 8 x 2 vectors fit into the registers
enum { PADDING, RUNNING, TERMINATED, TRUNCATED };  // as `Status`

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float Row[UNITS];
typedef float Observation[INPUTS];

typedef struct {  // the arrays of a network one after the other; a critic does not use the last number
  Row w1[INPUTS], b1, w2[UNITS], b2, w3;
  float b3, log_std;
} Net;
enum { NUMBERS = sizeof(Net) / sizeof(float) };

typedef struct {
  float shift;                                      // of the engine
  float mean[INPUTS], scale[INPUTS], reward_scale;  // filters; scales are inverse standard deviations
} Client;

typedef struct {
  float observation_limit, reward_limit, discount, gae_discount, critic_rate, rate, momentum, max_norm, cap, entropy,
      kl_target;
  int horizon, min_steps, iterations, critic_epochs;
} Settings;

typedef struct {  // the steps of one client
  int steps;
  Observation* observation;  // filtered
  float *action, *reward, *mean, *value, *advantage, *target;
  int8_t* last;  // the step is the last of its episode
  float log_std;  // of the policy that played
} Batch;

// ---- networks ----

// The rational function of XLA and Eigen.
static inline float squashed(float x) {
  x = fminf(fmaxf(x, -7.9053111f), 7.9053111f);
  float s = x * x;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s - 8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return x * p / q;
}

static void squash(int rows, Row* x) {
  for (int i = 0; i < rows * UNITS; i++) x[0][i] = squashed(x[0][i]);
}

// out[r] += sum over k of a[r * across + k * along] * b[k]. Halves of eight rows of `out` at a time stay in registers.
static void multiply(int rows, int depth, const float* a, int across, int along, const Row* b, Row* out) {
  for (int half = 0; half < UNITS; half += PANEL * LANES)
    for (int r = 0; r < rows; r += TILE) {
      Vector sum[TILE][PANEL];
      for (int i = 0; i < TILE; i++)
        for (int v = 0; v < PANEL; v++) sum[i][v] = ((Vector*)(out[r + i] + half))[v];
      for (int k = 0; k < depth; k++) {
        const Vector* row = (const Vector*)(b[k] + half);
        for (int i = 0; i < TILE; i++)
          for (int v = 0; v < PANEL; v++) sum[i][v] += a[(r + i) * across + k * along] * row[v];
      }
      for (int i = 0; i < TILE; i++)
        for (int v = 0; v < PANEL; v++) ((Vector*)(out[r + i] + half))[v] = sum[i][v];
    }
}

static inline float dot(const float* a, const float* b) {
  float sum = 0;
  for (int i = 0; i < UNITS; i++) sum += a[i] * b[i];
  return sum;
}

static void first_layer(const Net* net, int rows, const Observation* x, Row* h1) {
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < UNITS; j++)
      h1[r][j] = squashed(net->b1[j] + x[r][0] * net->w1[0][j] + x[r][1] * net->w1[1][j]);
}

// Outputs; the hidden layers stay in h1 and h2, which have room for a multiple of eight rows.
static void forward(const Net* net, int rows, const Observation* x, Row* h1, Row* h2, float* y) {
  first_layer(net, rows, x, h1);
  for (int r = 0; r < rows; r++) memcpy(h2[r], net->b2, sizeof(Row));
  multiply(rows, UNITS, h1[0], UNITS, 1, net->w2, h2);
  squash(rows, h2);
  for (int r = 0; r < rows; r++) y[r] = net->b3 + dot(h2[r], net->w3);
}

// The output for one observation. Four partial sums per number, because a sum has to wait for each product.
static float forward_one(const Net* net, const Observation* x) {
  _Alignas(64) Row h1, h2;
  first_layer(net, 1, x, &h1);
  Vector sum[4][VECTORS] = {0};
  for (int k = 0; k < UNITS; k += 4)
    for (int i = 0; i < 4; i++)
      for (int v = 0; v < VECTORS; v++) sum[i][v] += h1[k + i] * ((const Vector*)net->w2[k + i])[v];
  for (int v = 0; v < VECTORS; v++)
    ((Vector*)h2)[v] = ((const Vector*)net->b2)[v] + (sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]);
  squash(1, &h2);
  return net->b3 + dot(h2, net->w3);
}

void outputs(const Net* net, int rows, const Observation* x, float* y) {
  _Alignas(64) Row h1[MINIBATCH], h2[MINIBATCH];
  for (int r = 0; r < rows; r += MINIBATCH) {
    int some = rows - r < MINIBATCH ? rows - r : MINIBATCH;
    forward(net, some, x + r, h1, h2, y + r);
  }
}

// The gradient for a minibatch, given that of its outputs. Overwrites the hidden layers.
static void backward(const Net* net, const Observation* x, Row* h1, Row* h2, const float* dy, Net* gradient) {
  _Alignas(64) Row transposed[UNITS], d1[MINIBATCH];
  memset(gradient, 0, sizeof(Net));
  memset(d1, 0, sizeof d1);
  for (int i = 0; i < UNITS; i++)
    for (int j = 0; j < UNITS; j++) transposed[j][i] = net->w2[i][j];
  for (int r = 0; r < MINIBATCH; r++) gradient->b3 += dy[r];
  for (int j = 0; j < UNITS; j += LANES) {
    Vector w3 = *(const Vector*)(net->w3 + j), d_w3 = {0}, d_b2 = {0};
    for (int r = 0; r < MINIBATCH; r++) {
      Vector* h = (Vector*)(h2[r] + j);
      d_w3 += dy[r] * *h;
      d_b2 += *h = dy[r] * w3 * (1 - *h * *h);
    }
    *(Vector*)(gradient->w3 + j) = d_w3, *(Vector*)(gradient->b2 + j) = d_b2;
  }
  multiply(UNITS, MINIBATCH, h1[0], 1, UNITS, h2, gradient->w2);
  multiply(MINIBATCH, UNITS, h2[0], UNITS, 1, transposed, d1);
  for (int j = 0; j < UNITS; j += LANES) {
    Vector d_b1 = {0}, d_w1[INPUTS] = {{0}};
    for (int r = 0; r < MINIBATCH; r++) {
      Vector h = *(Vector*)(h1[r] + j), slope = *(Vector*)(d1[r] + j) * (1 - h * h);
      d_b1 += slope, d_w1[0] += x[r][0] * slope, d_w1[1] += x[r][1] * slope;
    }
    *(Vector*)(gradient->b1 + j) = d_b1;
    *(Vector*)(gradient->w1[0] + j) = d_w1[0], *(Vector*)(gradient->w1[1] + j) = d_w1[1];
  }
}

// ---- cars ----

// Standard normal numbers (Box and Muller), one for each state of a generator (Marsaglia's xorshift).
static void draw(int count, uint32_t* state, float* normal) {
  for (int i = 0; i < count; i++) {
    uint32_t x = state[i];
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    uint32_t y = x;
    y ^= y << 13, y ^= y >> 17, y ^= y << 5;
    state[i] = y;
    float u = ((int)(x >> 8) + 1) * 0x1p-24f, v = (int)(y >> 8) * 0x1p-24f;
    normal[i] = sqrtf(-2 * logf(u)) * cosf(6.2831853f * v);
  }
}

static void seed(int count, uint32_t number, uint32_t* state) {
  for (int i = 0; i < count; i++) {
    uint32_t x = (number + i + 1) * 2654435769u;
    state[i] = (x ^ x >> 15) * 2246822519u | 1;
  }
}

static inline float clipped(float x, float limit) { return fminf(fmaxf(x, -limit), limit); }

// Where a car is, and its filtered observation.
static inline void look(const Settings* s, const Client* client, float position, float velocity, float* x) {
  x[0] = clipped((position - client->mean[0]) * client->scale[0], s->observation_limit);
  x[1] = clipped((velocity - client->mean[1]) * client->scale[1], s->observation_limit);
}

// One step of MountainCarContinuous; returns its reward.
static inline float drive(float action, float shift, float* position, float* velocity, int* arrived) {
  float force = action + shift;
  float v = clipped(*velocity + clipped(force, 1) * 0.0015f - 0.0025f * cosf(3 * *position), 0.07f);
  float p = fminf(fmaxf(*position + v, -1.2f), 0.6f);
  v = p == -1.2f ? fmaxf(v, 0) : v;
  int goal = p >= 0.45f && v >= 0;
  *position = p, *velocity = v, *arrived = goal;
  return (goal ? 100.0f : 0.0f) - 0.1f * force * force;
}

// ---- threads ----

typedef struct {
  void (*task)(void* job, int number);
  void* job;
  int first, stride, count;
} Share;

static void* work(void* argument) {
  const Share* share = argument;
  for (int n = share->first; n < share->count; n += share->stride) share->task(share->job, n);
  return 0;
}

static void spread(void (*task)(void*, int), void* job, int count, int num_threads) {
  pthread_t threads[64];
  Share shares[64];
  for (int i = 0; i < num_threads; i++) {
    shares[i] = (Share){task, job, i, num_threads, count};
    pthread_create(&threads[i], 0, work, &shares[i]);
  }
  for (int i = 0; i < num_threads; i++) pthread_join(threads[i], 0);
}

// ---- evaluation ----

typedef struct {
  const Settings* settings;
  const Net* policy;
  const Client* clients;
  int episodes, lanes;
  Observation* observation;  // all [horizon][lanes]
  float *action, *reward;
  int8_t* status;
  long* steps;  // of each block
} Rollout;

// Some episodes side by side, until the last has ended.
static void roll_block(void* job, int number) {
  const Rollout* roll = job;
  const Settings* s = roll->settings;
  int first = number * BLOCK, lanes = roll->lanes - first < BLOCK ? roll->lanes - first : BLOCK;
  _Alignas(64) Row h1[BLOCK], h2[BLOCK];
  Observation x[BLOCK];
  float position[BLOCK], velocity[BLOCK], shift[BLOCK], output[BLOCK], noise[BLOCK], std = expf(roll->policy->log_std);
  uint32_t state[BLOCK];
  int playing[BLOCK], arrived[BLOCK], active = lanes;
  seed(lanes, first, state);
  for (int i = 0; i < lanes; i++) {
    position[i] = -0.6f + 0.2f * (state[i] >> 8) * 0x1p-24f, velocity[i] = 0;
    shift[i] = roll->clients[(first + i) / roll->episodes].shift;
    playing[i] = 1;
  }
  for (int t = 0; t < s->horizon && active; t++) {
    size_t at = (size_t)t * roll->lanes + first;
    float *restrict action = roll->action + at, *restrict reward = roll->reward + at;
    int8_t* restrict status = roll->status + at;
    for (int i = 0; i < lanes; i++) {
      roll->observation[at + i][0] = position[i], roll->observation[at + i][1] = velocity[i];
      look(s, roll->clients + (first + i) / roll->episodes, position[i], velocity[i], x[i]);
    }
    forward(roll->policy, lanes, x, h1, h2, output);
    draw(lanes, state, noise);
    for (int i = 0; i < lanes; i++) {
      action[i] = output[i] + std * noise[i];
      reward[i] = drive(action[i], shift[i], &position[i], &velocity[i], &arrived[i]);
    }
    roll->steps[number] += active;
    active = 0;
    int running = t + 1 == s->horizon ? TRUNCATED : RUNNING;
    for (int i = 0; i < lanes; i++) {
      int end = arrived[i] ? TERMINATED : running;
      status[i] = playing[i] ? end : PADDING;
      active += playing[i] = playing[i] && end == RUNNING;
    }
  }
}

// Episodes of all clients with one policy; returns their steps.
long roll(const Settings* settings, const Net* policy, const Client* clients, int num_clients, int episodes,
          Observation* observation, float* action, float* reward, int8_t* status, int num_threads) {
  int lanes = num_clients * episodes, blocks = (lanes + BLOCK - 1) / BLOCK;
  long* steps = calloc(blocks, sizeof(long));
  Rollout job = {settings, policy, clients, episodes, lanes, observation, action, reward, status, steps};
  spread(roll_block, &job, blocks, num_threads);
  long total = 0;
  for (int i = 0; i < blocks; i++) total += steps[i];
  free(steps);
  return total;
}

// ---- learning ----

typedef struct {
  _Alignas(64) Net net, first, second;  // with moments, or momentum alone
  int count;                            // of steps of Adam
} Learned;

// A minibatch in the order of an epoch; rows after the last step repeat one, with weight 0.
typedef struct {
  int index[MINIBATCH];
  float weight[MINIBATCH];
  Observation x[MINIBATCH];
} Chosen;

static void choose(const Batch* batch, const int* order, int start, Chosen* chosen) {
  int left = batch->steps - start, count = left < MINIBATCH ? left : MINIBATCH;
  for (int r = 0; r < MINIBATCH; r++) {
    int i = chosen->index[r] = order[start + (r < count ? r : 0)];
    chosen->weight[r] = r < count ? 1.0f / count : 0;
    memcpy(chosen->x[r], batch->observation[i], sizeof(Observation));
  }
}

static void adam(const Settings* s, const Net* gradient, Learned* learned) {
  const float *g = (const float*)gradient;
  float *w = (float*)&learned->net, *m = (float*)&learned->first, *v = (float*)&learned->second;
  learned->count++;
  float fix1 = 1 / (1 - powf(0.9f, learned->count)), fix2 = 1 / (1 - powf(0.999f, learned->count));
  for (int i = 0; i < NUMBERS; i++) {
    m[i] = 0.9f * m[i] + 0.1f * g[i];
    v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
    w[i] -= s->critic_rate * m[i] * fix1 / (sqrtf(v[i] * fix2) + 1e-8f);
  }
}

static void descend(const Settings* s, const Net* gradient, Learned* learned) {
  const float* g = (const float*)gradient;
  float *w = (float*)&learned->net, *m = (float*)&learned->first, square = 0;
  for (int i = 0; i < NUMBERS; i++) square += g[i] * g[i];
  float norm = sqrtf(square), kept = norm < s->max_norm ? 1 : s->max_norm / norm;
  for (int i = 0; i < NUMBERS; i++) {
    m[i] = kept * g[i] + s->momentum * m[i];
    w[i] -= s->rate * m[i];
  }
}

// One pass of the critic over the batch: squared distance to the targets.
static void critic_epoch(const Settings* s, const Batch* batch, const int* order, Learned* critic) {
  _Alignas(64) Row h1[MINIBATCH], h2[MINIBATCH];
  _Alignas(64) Net gradient;
  Chosen chosen;
  float y[MINIBATCH], dy[MINIBATCH];
  for (int start = 0; start < batch->steps; start += MINIBATCH) {
    choose(batch, order, start, &chosen);
    forward(&critic->net, MINIBATCH, chosen.x, h1, h2, y);
    for (int r = 0; r < MINIBATCH; r++) dy[r] = 2 * chosen.weight[r] * (y[r] - batch->target[chosen.index[r]]);
    backward(&critic->net, chosen.x, h1, h2, dy, &gradient);
    adam(s, &gradient, critic);
  }
}

// One pass of the policy: importance weights with a cap, a KL penalty and an entropy bonus.
static void policy_epoch(const Settings* s, const Batch* batch, const int* order, float beta, Learned* policy) {
  _Alignas(64) Row h1[MINIBATCH], h2[MINIBATCH];
  _Alignas(64) Net gradient;
  Chosen chosen;
  float y[MINIBATCH], dy[MINIBATCH];
  for (int start = 0; start < batch->steps; start += MINIBATCH) {
    choose(batch, order, start, &chosen);
    forward(&policy->net, MINIBATCH, chosen.x, h1, h2, y);
    float log_ratio = batch->log_std - policy->net.log_std, precision = expf(-policy->net.log_std);
    float old_precision = expf(-batch->log_std), square = expf(2 * log_ratio), d_log_std = 0;
    for (int r = 0; r < MINIBATCH; r++) {
      int i = chosen.index[r];
      float deviation = (batch->action[i] - y[r]) * precision;
      float before = (batch->action[i] - batch->mean[i]) * old_precision;
      float moved = (y[r] - batch->mean[i]) * precision;
      float weight = expf(0.5f * (before * before - deviation * deviation) + log_ratio);
      float gain = weight < s->cap ? weight * batch->advantage[i] : 0;
      dy[r] = chosen.weight[r] * precision * (beta * moved - gain * deviation);
      float spread = beta * (1 - square - moved * moved) - gain * (deviation * deviation - 1) - s->entropy;
      d_log_std += chosen.weight[r] * spread;
    }
    backward(&policy->net, chosen.x, h1, h2, dy, &gradient);
    gradient.log_std = d_log_std;
    descend(s, &gradient, policy);
  }
}

// Generalised advantages, and standardised ones after the targets are known.
static void advantages(const Settings* s, Batch* batch) {
  float next_value = 0, next = 0, sum = 0, squares = 0;
  for (int t = batch->steps - 1; t >= 0; t--) {
    float continues = !batch->last[t];
    float delta = batch->reward[t] + s->discount * continues * next_value - batch->value[t];
    next = batch->advantage[t] = delta + s->discount * s->gae_discount * continues * next;
    next_value = batch->value[t];
    batch->target[t] = next + next_value;
    sum += next;
  }
  float mean = sum / batch->steps;
  for (int t = 0; t < batch->steps; t++) squares += (batch->advantage[t] - mean) * (batch->advantage[t] - mean);
  float scale = 1 / (sqrtf(squares / batch->steps) + 1e-8f);
  for (int t = 0; t < batch->steps; t++) batch->advantage[t] = (batch->advantage[t] - mean) * scale;
}

// Whole episodes, one after the other, until there are more than the least number of steps.
static void play(const Settings* s, const Client* client, const Net* policy, uint32_t* state, Batch* batch) {
  float position = 0, velocity = 0, std = expf(policy->log_std), noise[UNITS];
  int t = 0, elapsed = 0;
  for (int arrived, last = 1; !(last && t > s->min_steps); t++) {
    if (t % UNITS == 0) draw(UNITS, state, noise);
    if (last) position = -0.6f + 0.2f * (state[0] >> 8) * 0x1p-24f, velocity = 0, elapsed = 0;
    look(s, client, position, velocity, batch->observation[t]);
    batch->mean[t] = forward_one(policy, batch->observation + t);
    batch->action[t] = batch->mean[t] + std * noise[t % UNITS];
    float reward = drive(batch->action[t], client->shift, &position, &velocity, &arrived);
    batch->reward[t] = clipped(reward * client->reward_scale, s->reward_limit);
    last = batch->last[t] = arrived || ++elapsed == s->horizon;
  }
  batch->steps = t;
  batch->log_std = policy->log_std;
}

static void shuffle(int count, uint32_t* state, int* order) {
  for (int i = 0; i < count; i++) {
    uint32_t x = *state;
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    *state = x;
    int j = (uint64_t)x * (i + 1) >> 32;
    order[i] = order[j], order[j] = i;
  }
}

// beta doubles or halves with the divergence; returns it. Computes the loss of the critic too, which is reported.
static float reported(const Settings* s, const Batch* batch, const Net* policy, const Net* critic, float beta,
                      float* loss) {
  float precision = expf(-policy->log_std), ratio = batch->log_std - policy->log_std, kl = 0, largest = 0;
  float* output = batch->reward;  // not needed any more
  outputs(policy, batch->steps, batch->observation, output);
  for (int t = 0; t < batch->steps; t++) {
    float moved = (output[t] - batch->mean[t]) * precision;
    kl += moved * moved;
    largest = fmaxf(largest, batch->advantage[t]);
  }
  kl = 0.5f * (kl / batch->steps + expf(2 * ratio) - 1) - ratio;
  outputs(critic, batch->steps, batch->observation, output);
  *loss = 0;
  for (int t = 0; t < batch->steps; t++) *loss += (output[t] - batch->target[t]) * (output[t] - batch->target[t]);
  float adapted = kl > 1.1f * s->kl_target ? 2 * beta : kl < s->kl_target / 1.1f ? beta / 2 : beta;
  return fmaxf(fminf(adapted, fminf(20, largest / fmaxf(fabsf(kl), 1e-12f))), 1e-8f);
}

// A local iteration after playing. The distribution that played is known, so no old one has to be computed.
static void learn(const Settings* s, Batch* batch, const int* orders, float* beta, Learned* policy, Learned* critic) {
  outputs(&critic->net, batch->steps, batch->observation, batch->value);
  advantages(s, batch);
  policy_epoch(s, batch, orders, *beta, policy);
  for (int epoch = 1; epoch <= s->critic_epochs; epoch++)
    critic_epoch(s, batch, orders + epoch * batch->steps, critic);
  float loss;
  *beta = reported(s, batch, &policy->net, &critic->net, *beta, &loss);
}

// The same on given steps, from fresh optimisers; changes both networks and beta.
void learn_from(const Settings* s, int steps, Observation* observation, float* action, float* reward, float* mean,
                int8_t* last, const int* orders, Net* policy, Net* critic, float* beta) {
  float* made = calloc(3 * steps, sizeof(float));
  Batch batch = {steps, observation, action, reward, mean, made, made + steps, made + 2 * steps, last, policy->log_std};
  Learned learned_policy = {.net = *policy}, learned_critic = {.net = *critic};
  learn(s, &batch, orders, beta, &learned_policy, &learned_critic);
  *policy = learned_policy.net, *critic = learned_critic.net;
  free(made);
}

typedef struct {
  const Settings* settings;
  const Client* clients;
  const Net *policy, *critic;  // that the server sends
  Net *policies, *critics;     // of each client, afterwards
  long* steps;
} Training;

// Local iterations of one client.
static void train_client(void* job, int number) {
  const Training* training = job;
  const Settings* s = training->settings;
  int room = s->min_steps + s->horizon, num_orders = 1 + s->critic_epochs;
  Observation* observation = calloc(room, sizeof(Observation));
  float* columns = calloc(6 * room, sizeof(float));
  int8_t* last = calloc(room, 1);
  int* orders = calloc(num_orders * room, sizeof(int));
  Batch batch = {.observation = observation, .action = columns, .reward = columns + room, .mean = columns + 2 * room,
                 .value = columns + 3 * room, .advantage = columns + 4 * room, .target = columns + 5 * room,
                 .last = last};
  Learned policy = {.net = *training->policy}, critic = {.net = *training->critic};
  uint32_t state[UNITS];
  float beta = 1;
  seed(UNITS, UNITS * number, state);
  for (int i = 0; i < s->iterations; i++) {
    play(s, &training->clients[number], &policy.net, state, &batch);
    for (int epoch = 0; epoch < num_orders; epoch++) shuffle(batch.steps, state, orders + epoch * batch.steps);
    learn(s, &batch, orders, &beta, &policy, &critic);
    training->steps[number] += batch.steps;
  }
  training->policies[number] = policy.net;
  training->critics[number] = critic.net;
  free(observation), free(columns), free(last), free(orders);
}

// Local training of some clients; returns their steps.
long train(const Settings* settings, const Client* clients, int num_clients, const Net* policy, const Net* critic,
           Net* policies, Net* critics, int num_threads) {
  long* steps = calloc(num_clients, sizeof(long));
  Training job = {settings, clients, policy, critic, policies, critics, steps};
  spread(train_client, &job, num_clients, num_threads);
  long total = 0;
  for (int i = 0; i < num_clients; i++) total += steps[i];
  free(steps);
  return total;
}
